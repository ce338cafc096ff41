#include "framework/autograd/autograd.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "framework/autograd/node.h"
#include "framework/core/trace.h"
#include "framework/kernels/basic.h"

namespace penstock {
namespace {

thread_local bool t_grad_enabled = true;
std::function<void(const Tensor&)>& ready_hook() {
  static std::function<void(const Tensor&)> hook;
  return hook;
}

std::uint64_t next_sequence() {
  static std::atomic<std::uint64_t> counter{0};
  return ++counter;
}

LeafState& state_of(const Tensor& x) {
  check(x.node() != nullptr && x.node()->leaf != nullptr, "autograd: {} is not a leaf", x);
  return *x.node()->leaf;
}

std::size_t low_precision_slot(DType dtype) { return dtype == DType::f16 ? 0 : 1; }

}  // namespace

// A chain of a million nodes must not free itself recursively: what a node held is put on a list
// that the outermost destructor empties.
GradNode::~GradNode() {
  thread_local std::vector<std::shared_ptr<GradNode>>* pending_list = nullptr;
  if (pending_list != nullptr) {
    for (Edge& e : inputs) {
      if (e.node) {
        pending_list->push_back(std::move(e.node));
      }
    }
    return;
  }
  std::vector<std::shared_ptr<GradNode>> list;
  pending_list = &list;
  backward = nullptr;  // captured tensors may own nodes too
  for (Edge& e : inputs) {
    if (e.node) {
      list.push_back(std::move(e.node));
    }
  }
  while (!list.empty()) {
    const std::shared_ptr<GradNode> next = std::move(list.back());
    list.pop_back();
  }
  pending_list = nullptr;
}

bool needs_grad(std::initializer_list<Tensor> inputs) {
  return t_grad_enabled &&
         std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.needs_grad(); });
}

std::vector<Tensor> record_all(const char* op, std::vector<Tensor> outputs,
                               const std::vector<Tensor>& inputs, BackwardFn backward) {
  const bool wanted =
      t_grad_enabled && std::any_of(inputs.begin(), inputs.end(),
                                    [](const Tensor& t) { return t.needs_grad(); });
  if (!wanted) {
    for (Tensor& y : outputs) {
      y = y.detached();
    }
    return outputs;
  }
  auto node = std::make_shared<GradNode>();
  node->op = op;
  node->sequence = next_sequence();
  node->backward = std::move(backward);
  node->grads.resize(outputs.size());
  node->inputs.reserve(inputs.size());
  for (const Tensor& x : inputs) {
    Edge e;
    if (x.needs_grad()) {
      e.node = x.node();
      e.output = x.output();
      e.shape = x.shape();
      e.dtype = x.dtype();
      e.version = x.node()->leaf ? x.node()->leaf->version : 0;
    }
    node->inputs.push_back(std::move(e));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i] = outputs[i].with_node(node, int(i));
  }
  return outputs;
}

Tensor record(const char* op, const Tensor& y, std::initializer_list<Tensor> inputs,
              BackwardFn backward) {
  return record_all(op, {y}, inputs, std::move(backward))[0];
}

NoGrad::NoGrad() : before_(std::exchange(t_grad_enabled, false)) {}
NoGrad::~NoGrad() { t_grad_enabled = before_; }
WithGrad::WithGrad() : before_(std::exchange(t_grad_enabled, true)) {}
WithGrad::~WithGrad() { t_grad_enabled = before_; }

// One run of backward().
class Engine {
 public:
  explicit Engine(bool accumulate) : accumulate_(accumulate) {}

  void run(const Tensor& y, const Tensor& seed) {
    const std::shared_ptr<GradNode>& root = y.node();
    check(root != nullptr, "backward: {} does not depend on anything that needs a gradient", y);
    check(!root->spent, "backward: the graph of '{}' was already used", root->op);
    count_consumers(root.get());
    try {
      const bool implicit = !seed.defined();
      if (implicit) {
        check(y.numel() == 1, "backward: {} has {} elements; give a seed gradient", y, y.numel());
      } else {
        check(seed.shape() == y.shape(), "backward: seed {} for {}", seed, y);
      }
      walk(root.get(), y.output(), implicit ? one(y) : seed, implicit);
    } catch (...) {
      // A failed pass leaves no half-delivered gradients behind in the graph.
      for (GradNode* n : visited_) {
        reset(*n);
      }
      throw;
    }
    for (GradNode* n : visited_) {
      reset(*n);
    }
  }

  void deliver(GradNode& from, int input, const Tensor& dx) {
    Edge& e = from.inputs[std::size_t(input)];
    if (!e.node) {
      return;
    }
    Tensor g = kernels::sum_to_shape(dx.detached(), e.shape);
    if (e.node->leaf) {
      LeafState& leaf = *e.node->leaf;
      const float beta = prepare_sink(leaf);
      const Tensor target = leaf.grad.view(g.shape());
      if (beta == 0) {
        kernels::cast_into(target, g);
      } else {
        kernels::add_into(target, g);
      }
      return;
    }
    g = kernels::cast(g, e.dtype);
    Tensor& slot = e.node->grads[std::size_t(e.output)];
    if (!slot.defined()) {
      slot = g;
    } else if (slot.storage().use_count() == 1) {
      kernels::add_into(slot, g);  // nobody else sees this buffer
    } else {
      const Tensor sum = Tensor::empty(slot.shape(), slot.dtype(), slot.device());
      kernels::cast_into(sum, slot);
      kernels::add_into(sum, g);
      slot = sum;
    }
  }

  bool accumulates() const { return accumulate_; }

  // Beta for the next write into the leaf's gradient; marks it as written.
  float prepare_sink(LeafState& leaf) {
    if (!leaf.grad.defined()) {
      const PersistentScope persistent;
      leaf.grad = Tensor::empty(leaf.value.shape(),
                                leaf.value.dtype() == DType::f64 ? DType::f64 : DType::f32,
                                leaf.value.device(), MemoryClass::kGradients);
      leaf.written = false;
    }
    const bool first = !leaf.written && !accumulate_;
    // An accumulating pass over a parameter that the first one did not reach starts from zero too.
    const bool never = !leaf.written;
    leaf.written = true;
    return first || never ? 0.0F : 1.0F;
  }

 private:
  static Tensor one(const Tensor& y) {
    const Tensor t = Tensor::empty(y.shape(), y.dtype(), y.device());
    kernels::fill(t, 1);
    return t;
  }

  static void reset(GradNode& n) {
    n.visited = false;
    n.pending = 0;
    for (Tensor& g : n.grads) {
      g = Tensor();
    }
  }

  void count_consumers(GradNode* root) {
    std::vector<GradNode*> stack = {root};
    root->visited = true;
    visited_.push_back(root);
    while (!stack.empty()) {
      GradNode* n = stack.back();
      stack.pop_back();
      for (Edge& e : n->inputs) {
        if (!e.node) {
          continue;
        }
        check(!e.node->spent, "backward: the graph of '{}' was already used", e.node->op);
        ++e.node->pending;
        if (!e.node->visited) {
          e.node->visited = true;
          visited_.push_back(e.node.get());
          stack.push_back(e.node.get());
          if (e.node->leaf && !accumulate_) {
            e.node->leaf->written = false;
          }
        }
      }
    }
  }

  void walk(GradNode* root, int output, const Tensor& seed, bool implicit) {
    const auto later = [](const GradNode* a, const GradNode* b) { return a->sequence < b->sequence; };
    std::priority_queue<GradNode*, std::vector<GradNode*>, decltype(later)> ready(later);
    if (root->leaf) {
      leaf_seed(*root, seed);
      return;
    }
    root->grads[std::size_t(output)] = seed;
    ready.push(root);
    while (!ready.empty()) {
      GradNode* n = ready.top();
      ready.pop();
      run_node(*n, n == root && implicit);
      for (Edge& e : n->inputs) {
        if (!e.node || --e.node->pending > 0) {
          continue;
        }
        if (!e.node->leaf) {
          ready.push(e.node.get());
        } else if (ready_hook()) {
          ready_hook()(e.node->leaf->value.with_node(e.node));
        }
      }
    }
  }

  void leaf_seed(GradNode& root, const Tensor& seed) {
    LeafState& leaf = *root.leaf;
    if (!accumulate_) {
      leaf.written = false;
    }
    if (prepare_sink(leaf) == 0) {
      kernels::cast_into(leaf.grad, seed);
    } else {
      kernels::add_into(leaf.grad, seed);
    }
  }

  void run_node(GradNode& n, bool implicit) {
    for (const Edge& e : n.inputs) {
      if (e.node && e.node->leaf) {
        check(e.node->leaf->version == e.version,
              "backward of '{}': parameter '{}' was changed after the forward pass (version {}, "
              "recorded at {}); run the forward pass again",
              n.op, e.node->leaf->name, e.node->leaf->version, e.version);
      }
    }
    const bool any = std::any_of(n.grads.begin(), n.grads.end(),
                                 [](const Tensor& g) { return g.defined(); });
    if (any) {
      const trace::Op op(n.op, trace::Phase::kBackward);
      const NoGrad no_grad;
      Backward context;
      context.node_ = &n;
      context.engine_ = this;
      context.dy_is_seed_ = implicit;
      n.backward(context);
    }
    // Free what the closure captured as soon as it ran.
    n.backward = nullptr;
    n.spent = true;
    for (Tensor& g : n.grads) {
      g = Tensor();
    }
  }

  bool accumulate_;
  std::vector<GradNode*> visited_;
};

const Tensor& Backward::dy(int i) const { return node_->grads[std::size_t(i)]; }
bool Backward::accumulates() const { return engine_->accumulates(); }
bool Backward::wants(int i) const { return node_->inputs[std::size_t(i)].node != nullptr; }
bool Backward::has_sink(int i) const {
  const Edge& e = node_->inputs[std::size_t(i)];
  return e.node != nullptr && e.node->leaf != nullptr;
}
Sink Backward::sink(int i) {
  check(has_sink(i), "backward of '{}': input {} is not a parameter", node_->op, i);
  LeafState& leaf = *node_->inputs[std::size_t(i)].node->leaf;
  const float beta = engine_->prepare_sink(leaf);
  return {leaf.grad.view(node_->inputs[std::size_t(i)].shape), beta};
}
void Backward::set(int i, const Tensor& dx) {
  if (wants(i)) {
    check(dx.defined(), "backward of '{}': no gradient for input {}", node_->op, i);
    engine_->deliver(*node_, i, dx);
  }
}

void backward(const Tensor& y, const BackwardOptions& options) {
  Engine(options.accumulate).run(y, options.seed);
}

Tensor leaf(const Tensor& value, const std::string& name, const Tensor& grad) {
  check(is_float(value.dtype()), "leaf: '{}' is {}, gradients need a float dtype", name,
        value.dtype());
  auto node = std::make_shared<GradNode>();
  node->op = "leaf";
  node->leaf = std::make_unique<LeafState>();
  node->leaf->name = name;
  node->leaf->value = value.detached();
  node->leaf->grad = grad;
  return value.with_node(std::move(node));
}

Tensor grad(const Tensor& leaf) { return state_of(leaf).grad; }
const std::string& leaf_name(const Tensor& leaf) { return state_of(leaf).name; }

void set_low_precision(const Tensor& leaf, const Tensor& twin) {
  check(is_half(twin.dtype()) && twin.shape() == leaf.shape(), "low precision: {} for {}", twin,
        leaf);
  state_of(leaf).low_precision[low_precision_slot(twin.dtype())] = twin.detached();
}

Tensor low_precision(const Tensor& leaf, DType dtype) {
  if (!leaf.node() || !leaf.node()->leaf || !is_half(dtype)) {
    return {};
  }
  const Tensor& twin = leaf.node()->leaf->low_precision[low_precision_slot(dtype)];
  return twin.defined() ? twin.with_node(leaf.node()) : Tensor();
}

void bump_version(const Tensor& leaf) { ++state_of(leaf).version; }
bool grad_written(const Tensor& leaf) { return state_of(leaf).written; }
void clear_grad_written(const Tensor& leaf) { state_of(leaf).written = false; }
void set_grad_ready_hook(std::function<void(const Tensor& leaf)> hook) {
  ready_hook() = std::move(hook);
}

}  // namespace penstock
