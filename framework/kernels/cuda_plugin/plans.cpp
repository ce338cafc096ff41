// From a graph to something that runs: heuristics, engine configurations, plans.
#include <array>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "framework/kernels/cuda_plugin/graph.h"

namespace penstock_cuda {

class PlanBuilder {
 public:
  PlanBuilder(Context& context, const PenstockGraph& g, PenstockError* error)
      : context_(context), error_(error), full_f32_(g.dtype == kPenstockF32 && g.tf32 == 0) {
    graph_ = build_graph(g, error);
    if (!graph_) {
      return;
    }
    operations_ = Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    std::vector<cudnnBackendDescriptor_t> ops;
    for (const Descriptor& o : graph_->ops_) {
      ops.push_back(o.handle());
    }
    operations_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                    int64_t(ops.size()), ops.data());
    if (context_.dnn != nullptr) {
      operations_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &context_.dnn);
    }
    if (!operations_.finalize()) {
      set_error(error, "cuDNN: the operation graph was refused: %s",
                cudnnGetErrorString(operations_.status()));
      return;
    }
    ok_ = true;
  }
  bool ok() const { return ok_; }

  // Plans of one heuristic, appended until `capacity`.
  void search(cudnnBackendHeurMode_t mode, uint64_t limit, bool deterministic_only,
              PenstockPlan* out, int32_t capacity, int32_t* count) {
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations_);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (context_.dnn == nullptr) {
      heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *context_.device);
    }
    if (!heuristic.finalize()) {
      return;
    }
    constexpr int kMost = 64;
    std::vector<Descriptor> configs;
    std::vector<cudnnBackendDescriptor_t> handles;
    for (int i = 0; i < kMost; ++i) {
      configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
      handles.push_back(configs.back().handle());
    }
    int64_t found = 0;
    cudnnBackendGetAttribute(heuristic.handle(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, kMost, &found, handles.data());
    for (int64_t i = 0; i < found && *count < capacity; ++i) {
      PenstockPlan plan{};
      if (finish(std::move(configs[size_t(i)]), limit, deterministic_only, plan)) {
        bool twice = false;
        for (int32_t k = 0; k < *count; ++k) {
          twice = twice || std::strcmp(out[k].name, plan.name) == 0;
        }
        if (twice) {
          delete static_cast<Plan*>(plan.plan);
        } else {
          out[(*count)++] = plan;
        }
      }
    }
  }

  // The configuration written in a name: engine index and knob choices.
  bool named(const char* name, PenstockPlan& out) {
    int64_t engine_index = 0;
    int read = 0;
    if (std::sscanf(name, "eng%ld%n", &engine_index, &read) != 1) {
      set_error(error_, "cuDNN: '%s' names no engine", name);
      return false;
    }
    auto plan = std::make_unique<Plan>();
    plan->engine = Descriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    plan->engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, operations_);
    plan->engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, engine_index);
    if (context_.dnn == nullptr) {
      plan->engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, *context_.device);
    }
    if (!plan->engine.finalize()) {
      set_error(error_, "cuDNN: engine %ld is not available for this graph", long(engine_index));
      return false;
    }
    std::vector<cudnnBackendDescriptor_t> choices;
    const char* p = name + read;
    int type = 0;
    int64_t value = 0;
    while (std::sscanf(p, "%*[{,]k%d=%ld%n", &type, &value, &read) == 2) {
      p += read;
      const auto knob = cudnnBackendKnobType_t(type);
      Descriptor choice(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
      choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &knob);
      choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
      choice.finalize();
      choices.push_back(choice.handle());
      plan->knobs.push_back(std::move(choice));
    }
    Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    config.set(CUDNN_ATTR_ENGINECFG_ENGINE, plan->engine);
    if (!choices.empty()) {
      config.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 int64_t(choices.size()), choices.data());
    }
    if (!config.finalize()) {
      set_error(error_, "cuDNN: '%s' is not a configuration of this graph", name);
      return false;
    }
    keep_ = std::move(plan);
    if (!finish(std::move(config), UINT64_MAX, false, out)) {
      set_error(error_, "cuDNN: no plan could be made of '%s'", name);
      return false;
    }
    return true;
  }

 private:
  static bool has_note(const Descriptor& engine, cudnnBackendNumericalNote_t note) {
    std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
    int64_t count = 0;
    cudnnBackendGetAttribute(engine.handle(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                             CUDNN_TYPE_NUMERICAL_NOTE, int64_t(notes.size()), &count,
                             notes.data());
    for (int64_t i = 0; i < count; ++i) {
      if (notes[size_t(i)] == note) {
        return true;
      }
    }
    return false;
  }

  // "eng12{k2=1,k3=4}": enough to make the same configuration again.
  static void describe(const Descriptor& config, const Descriptor& engine, PenstockPlan& out) {
    int64_t index = 0;
    int64_t count = 0;
    cudnnBackendGetAttribute(engine.handle(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                             &count, &index);
    std::string text = "eng" + std::to_string(index);
    std::vector<Descriptor> knobs;
    std::vector<cudnnBackendDescriptor_t> handles;
    for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
      knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
      handles.push_back(knobs.back().handle());
    }
    cudnnBackendGetAttribute(config.handle(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(handles.size()), &count,
                             handles.data());
    for (int64_t i = 0; i < count; ++i) {
      cudnnBackendKnobType_t type{};
      int64_t value = 0;
      int64_t one = 0;
      cudnnBackendGetAttribute(handles[size_t(i)], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                               CUDNN_TYPE_KNOB_TYPE, 1, &one, &type);
      cudnnBackendGetAttribute(handles[size_t(i)], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                               CUDNN_TYPE_INT64, 1, &one, &value);
      text += (i == 0 ? "{k" : ",k") + std::to_string(int(type)) + "=" + std::to_string(value);
    }
    text += count > 0 ? "}" : "";
    std::snprintf(out.name, sizeof(out.name), "%s", text.c_str());
  }

  bool finish(Descriptor config, uint64_t limit, bool deterministic_only, PenstockPlan& out) {
    auto p = keep_ ? std::move(keep_) : std::make_unique<Plan>();
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t raw = engine.handle();
    int64_t count = 0;
    cudnnBackendGetAttribute(config.handle(), CUDNN_ATTR_ENGINECFG_ENGINE,
                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw);
    out.deterministic = !has_note(engine, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    if (deterministic_only && !out.deterministic) {
      return false;
    }
    // Matrix units round f32 operands to tf32: only when asked for.
    if (full_f32_ && (has_note(engine, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) ||
                      has_note(engine, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS))) {
      return false;
    }
    describe(config, engine, out);
    p->plan = Descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    p->plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (context_.dnn != nullptr) {
      p->plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &context_.dnn);
    } else {
      p->plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *context_.device);
    }
    if (!p->plan.finalize()) {
      // Without a device, an engine that compiles at run time gets as far as loading its code.
      return context_.dnn == nullptr && p->plan.status() != CUDNN_STATUS_NOT_SUPPORTED &&
             !(p->plan.status() >= CUDNN_STATUS_NOT_SUPPORTED &&
               p->plan.status() < CUDNN_STATUS_INTERNAL_ERROR) &&
             p->plan.status() != CUDNN_STATUS_BAD_PARAM;
    }
    int64_t workspace = 0;
    cudnnBackendGetAttribute(p->plan.handle(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                             CUDNN_TYPE_INT64, 1, &count, &workspace);
    if (uint64_t(workspace) > limit) {
      return false;
    }
    p->config = std::move(config);
    p->graph = graph_;
    for (const int id : graph_->inputs_) {
      p->uids.push_back(id + 1);
    }
    for (const auto& [id, value] : graph_->scalars_) {
      p->uids.push_back(id + 1);
      p->scalar_values.push_back(value);
    }
    out.workspace = uint64_t(workspace);
    out.plan = p.release();
    return true;
  }

  Context& context_;
  PenstockError* error_;
  bool full_f32_;
  std::shared_ptr<Graph> graph_;
  Descriptor operations_;
  std::unique_ptr<Plan> keep_;
  bool ok_ = false;
};

int graph_plans(void* context, const PenstockGraph* graph, uint64_t workspace_limit,
                PenstockPlan* out, int32_t capacity, int32_t* count, PenstockError* error) {
  *count = 0;
  PlanBuilder builder(*static_cast<Context*>(context), *graph, error);
  if (!builder.ok()) {
    return 1;
  }
  builder.search(CUDNN_HEUR_MODE_A, workspace_limit, graph->deterministic != 0, out, capacity,
                 count);
  if (*count == 0) {
    builder.search(CUDNN_HEUR_MODE_FALLBACK, workspace_limit, graph->deterministic != 0, out,
                   capacity, count);
  }
  return 0;
}

int graph_plan_named(void* context, const PenstockGraph* graph, const char* name,
                     PenstockPlan* out, PenstockError* error) {
  PlanBuilder builder(*static_cast<Context*>(context), *graph, error);
  return builder.ok() && builder.named(name, *out) ? 0 : 1;
}

int plan_run(void* context, void* plan, void* const* pointers, int32_t count, void* workspace,
             void* stream, PenstockError* error) {
  auto& c = *static_cast<Context*>(context);
  auto& p = *static_cast<Plan*>(plan);
  const size_t real = p.uids.size() - p.scalar_values.size();
  if (size_t(count) != real) {
    set_error(error, "cuDNN: %d addresses for a graph of %zu tensors", int(count), real);
    return 1;
  }
  std::vector<void*> addresses(pointers, pointers + count);
  for (float& v : p.scalar_values) {
    addresses.push_back(&v);
  }
  if (cudnnSetStream(c.dnn, static_cast<cudaStream_t>(stream)) != CUDNN_STATUS_SUCCESS) {
    set_error(error, "cuDNN: the stream was refused");
    return 1;
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, int64_t(p.uids.size()),
           p.uids.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, int64_t(addresses.size()),
           addresses.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  if (!pack.finalize()) {
    set_error(error, "cuDNN: the variant pack was refused: %s", cudnnGetErrorString(pack.status()));
    return 1;
  }
  const cudnnStatus_t status = cudnnBackendExecute(c.dnn, p.plan.handle(), pack.handle());
  if (status != CUDNN_STATUS_SUCCESS) {
    set_error(error, "cuDNN: running a plan failed: %s", cudnnGetErrorString(status));
    return 1;
  }
  return 0;
}

void plan_free(void* plan) { delete static_cast<Plan*>(plan); }

int device_json(void* context, char* out, int32_t capacity, PenstockError* error) {
  auto& c = *static_cast<Context*>(context);
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &c.dnn);
  if (!device.finalize()) {
    set_error(error, "cuDNN: no description of the device: %s",
              cudnnGetErrorString(device.status()));
    return 1;
  }
  int64_t count = 0;
  cudnnBackendGetAttribute(device.handle(), CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                           CUDNN_TYPE_CHAR, capacity - 1, &count, out);
  out[count < capacity ? count : capacity - 1] = '\0';
  return 0;
}

}  // namespace penstock_cuda
