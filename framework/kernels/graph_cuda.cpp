#include "framework/kernels/graph_cuda.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "framework/core/cuda.h"
#include "framework/core/log.h"
#include "framework/kernels/aligned.h"
#include "framework/kernels/choice.h"
#include "framework/kernels/library.h"

namespace penstock::kernels {
namespace {

constexpr int kCandidates = 10;

std::string key_of(const PenstockGraph& g) {
  // Every field counts and none is a pointer; padding is zero, since graphs start from {}.
  std::string key = "graph";
  const auto add = [&](auto v) { key += format(" {}", v); };
  add(g.kind);
  add(g.dtype);
  add(g.dtype_out);
  add(g.tf32);
  add(g.spatial);
  add(g.relu);
  add(g.with_bias);
  add(g.n);
  add(g.c);
  add(g.k);
  add(g.groups);
  for (const auto* a : {g.in, g.kernel, g.stride, g.pad, g.dilation}) {
    for (int i = 0; i < 3; ++i) {
      add(a[i]);
    }
  }
  add(g.causal);
  add(g.with_lengths);
  add(g.deterministic);
  add(g.batch);
  add(g.time);
  add(g.heads);
  add(g.width);
  add(g.scale);
  return key;
}

// Plans of this process, by key; freed with the process.
std::mutex g_mutex;
std::map<std::string, PenstockPlan>& plans() {
  static auto* map = new std::map<std::string, PenstockPlan>;
  return *map;
}
std::map<std::string, bool>& support() {
  static auto* map = new std::map<std::string, bool>;
  return *map;
}

std::vector<PenstockPlan> candidates(const PenstockGraph& g, i64 limit, int most) {
  const CudaLibrary& library = cuda_library();
  std::vector<PenstockPlan> out(static_cast<std::size_t>(most));
  int32_t count = 0;
  PenstockError error{};
  if (library.table->graph_plans(library.context, &g, uint64_t(limit), out.data(), most, &count,
                                 &error) != 0) {
    throw DeviceError(static_cast<const char*>(error.text));
  }
  out.resize(std::size_t(count));
  return out;
}

void execute(const GraphCall& call, const PenstockPlan& plan, const std::vector<Tensor>& tensors) {
  const CudaLibrary& library = cuda_library();
  const Tensor workspace = Tensor::empty({i64(plan.workspace)}, DType::u8, call.device,
                                         MemoryClass::kWorkspace);
  std::vector<void*> pointers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const i64 offset = call.offsets.empty() ? 0 : call.offsets[i];
    pointers.push_back(static_cast<char*>(tensors[i].raw()) + offset);
  }
  PenstockError error{};
  if (library.table->plan_run(library.context, plan.plan, pointers.data(),
                              int32_t(pointers.size()), workspace.raw(), cuda::compute_stream(),
                              &error) != 0) {
    throw DeviceError(static_cast<const char*>(error.text));
  }
}

// Times each candidate on the real inputs, with scratch in place of what the graph writes.
std::size_t fastest(const GraphCall& call, const std::vector<PenstockPlan>& all, double& ms) {
  std::vector<Tensor> tensors = call.tensors;
  for (std::size_t k = 0; k < call.written.size(); ++k) {
    // Parts of one tensor (dq, dk, dv) share one scratch.
    const std::size_t i = call.written[k];
    const auto same = std::find_if(
        call.written.begin(), call.written.begin() + std::ptrdiff_t(k),
        [&](std::size_t j) { return call.tensors[j].raw() == call.tensors[i].raw(); });
    tensors[i] = same != call.written.begin() + std::ptrdiff_t(k)
                     ? tensors[*same]
                     : Tensor::empty(tensors[i].shape(), tensors[i].dtype(), call.device,
                                     MemoryClass::kWorkspace);
  }
  std::size_t best = 0;
  ms = std::numeric_limits<double>::max();
  for (std::size_t k = 0; k < all.size(); ++k) {
    cuda::Event start(true);
    cuda::Event stop(true);
    double least = std::numeric_limits<double>::max();
    try {
      execute(call, all[k], tensors);
      for (int repeat = 0; repeat < 3; ++repeat) {
        start.record(cuda::compute_stream());
        execute(call, all[k], tensors);
        stop.record(cuda::compute_stream());
        stop.synchronize();
        least = std::min(least, double(stop.milliseconds_since(start)));
      }
    } catch (const DeviceError& e) {
      log::debug("cuda: {} refused: {}", all[k].name, e.what());
      continue;
    }
    if (least < ms) {
      ms = least;
      best = k;
    }
  }
  return best;
}

PenstockPlan choose(const GraphCall& call, const std::string& key) {
  const CudaLibrary& library = cuda_library();
  if (const auto known = find_choice(key)) {
    PenstockPlan plan{};
    PenstockError error{};
    if (library.table->graph_plan_named(library.context, &call.graph, known->algorithm.c_str(),
                                        &plan, &error) == 0) {
      return plan;
    }
    log::debug("cuda: a stored choice is not available any more: {}",
               static_cast<const char*>(error.text));
  }
  std::vector<PenstockPlan> all = candidates(call.graph, workspace_limit(), kCandidates);
  if (all.empty()) {  // more than the limit only when nothing else exists
    all = candidates(call.graph, std::numeric_limits<i64>::max(), 1);
  }
  if (all.empty()) {
    throw DeviceError(format("cuda: cuDNN has no engine for {}", key));
  }
  double ms = 0;
  const std::size_t best = untimed() ? 0 : fastest(call, all, ms);
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (k != best) {
      library.table->plan_free(all[k].plan);
    }
  }
  if (!untimed() || deterministic()) {
    keep_choice(key, {.algorithm = all[best].name,
                      .workspace = i64(all[best].workspace),
                      .milliseconds = ms});
  }
  return all[best];
}

}  // namespace

bool graph_supported(const PenstockGraph& graph) {
  if (!cuda::available()) {
    return true;
  }
  const std::string key = key_of(graph);
  const std::lock_guard lock(g_mutex);
  const auto known = support().find(key);
  if (known != support().end()) {
    return known->second;
  }
  bool yes = find_choice(key).has_value();
  if (!yes) {
    const auto all = candidates(graph, std::numeric_limits<i64>::max(), 1);
    yes = !all.empty();
    for (const PenstockPlan& p : all) {
      cuda_library().table->plan_free(p.plan);
    }
  }
  support()[key] = yes;
  return yes;
}

void run_graph(const GraphCall& request) {
  const std::string key = key_of(request.graph);
  AlignedCopies copies;
  GraphCall call = request;
  if (!call.device.is_meta()) {
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      const bool written =
          std::find(call.written.begin(), call.written.end(), i) != call.written.end();
      call.tensors[i] = copies.use(request.tensors[i], written);
    }
  }
  if (call.device.is_meta()) {
    const auto known = find_choice(key);
    (void)Tensor::empty({known ? known->workspace : workspace_limit()}, DType::u8, call.device,
                        MemoryClass::kWorkspace);
    return;
  }
  PenstockPlan plan{};
  {
    const std::lock_guard lock(g_mutex);
    const auto it = plans().find(key);
    plan = it != plans().end() ? it->second : PenstockPlan{};
  }
  if (plan.plan == nullptr) {
    plan = choose(call, key);
    const std::lock_guard lock(g_mutex);
    plans()[key] = plan;
  }
  execute(call, plan, call.tensors);
  copies.write_back();
}

std::string graph_engine(const PenstockGraph& graph) {
  const auto known = find_choice(key_of(graph));
  return known ? known->algorithm : "";
}

}  // namespace penstock::kernels
