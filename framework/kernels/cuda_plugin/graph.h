// A small layer over cuDNN's backend descriptors: tensors and operations of one graph, built in
// order, errors kept until the end.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <vector>

#include "framework/kernels/cuda_plugin/plugin.h"

namespace penstock_cuda {

// One backend descriptor; destroyed with it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* value);
  bool set(cudnnBackendAttributeName_t name, int64_t value) {
    return set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  bool set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.handle_);
  }
  bool set_type(cudnnBackendAttributeName_t name, cudnnDataType_t type) {
    return set(name, CUDNN_TYPE_DATA_TYPE, 1, &type);
  }
  bool finalize();
  cudnnStatus_t status() const { return status_; }
  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
  cudnnStatus_t status_ = CUDNN_STATUS_SUCCESS;
};

using Dims = std::vector<int64_t>;

struct TensorSpec {
  Dims dims;
  Dims strides;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
};

// Strides of dense row-major memory.
Dims packed(const Dims& dims);

class Graph {
 public:
  // A tensor whose address is given when the plan runs, in the order of creation.
  int input(const TensorSpec& spec);
  // A tensor that never reaches memory.
  int virtual_tensor(const TensorSpec& spec);
  // A float known now.
  int scalar(float value, int64_t rank);
  // A real tensor that the graph writes; like input() otherwise.
  int output(const TensorSpec& spec) { return input(spec); }

  void pointwise(cudnnPointwiseMode_t mode, int x, int b, int y, int predicate = -1,
                 int64_t axis = -1);
  void matmul(int a, int b, int c);
  void reduce(cudnnReduceTensorOp_t op, int x, int y);
  void reshape(int x, int y);
  void convolution(const PenstockGraph& g, int x, int w, int y);

  bool ok() const { return ok_; }
  const char* failed() const { return failed_; }

 private:
  friend class PlanBuilder;
  int add_tensor(const TensorSpec& spec, bool is_virtual, bool by_value);
  Descriptor& op(cudnnBackendDescriptorType_t type);
  void expect(bool good, const char* what);

  std::deque<Descriptor> tensors_;
  std::deque<Descriptor> helpers_;
  std::deque<Descriptor> ops_;
  std::vector<int> inputs_;            // tensor ids in pointer order
  std::vector<std::pair<int, float>> scalars_;  // tensor id, value
  bool ok_ = true;
  const char* failed_ = "";
};

// A finished plan with what a call needs; owned by the main library through PenstockPlan.
struct Plan {
  Descriptor engine, config, plan;
  std::vector<Descriptor> knobs;
  std::shared_ptr<Graph> graph;
  Descriptor operation_graph;
  std::vector<int64_t> uids;
  std::vector<float> scalar_values;
};

// Builds the graph of `g`; null with `error` when it cannot even be described.
std::shared_ptr<Graph> build_graph(const PenstockGraph& g, PenstockError* error);
void build_attention_forward(Graph& graph, const PenstockGraph& g);
void build_attention_backward(Graph& graph, const PenstockGraph& g);

cudnnDataType_t dnn_type(int32_t dtype);

}  // namespace penstock_cuda
