#include "framework/kernels/cuda_plugin/graph.h"

#include <utility>

namespace penstock_cuda {

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  status_ = cudnnBackendCreateDescriptor(type, &handle_);
}
Descriptor::~Descriptor() {
  if (handle_ != nullptr) {
    cudnnBackendDestroyDescriptor(handle_);
  }
}
Descriptor::Descriptor(Descriptor&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), status_(other.status_) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(status_, other.status_);
  return *this;
}

bool Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                     int64_t count, const void* value) {
  if (status_ == CUDNN_STATUS_SUCCESS) {
    status_ = cudnnBackendSetAttribute(handle_, name, type, count, value);
  }
  return status_ == CUDNN_STATUS_SUCCESS;
}

bool Descriptor::finalize() {
  if (status_ == CUDNN_STATUS_SUCCESS) {
    status_ = cudnnBackendFinalize(handle_);
  }
  return status_ == CUDNN_STATUS_SUCCESS;
}

Dims packed(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * dims[i];
  }
  return strides;
}

cudnnDataType_t dnn_type(int32_t dtype) {
  switch (dtype) {
    case kPenstockF16: return CUDNN_DATA_HALF;
    case kPenstockBf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

void Graph::expect(bool good, const char* what) {
  if (!good && ok_) {
    ok_ = false;
    failed_ = what;
  }
}

int Graph::add_tensor(const TensorSpec& spec, bool is_virtual, bool by_value) {
  const int id = int(tensors_.size());
  Descriptor& t = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  t.set_type(CUDNN_ATTR_TENSOR_DATA_TYPE, spec.type);
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, int64_t(spec.dims.size()),
        spec.dims.data());
  t.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, int64_t(spec.strides.size()),
        spec.strides.data());
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, int64_t(id + 1));
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t(16));
  t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
  expect(t.finalize(), "a tensor");
  return id;
}

int Graph::input(const TensorSpec& spec) {
  inputs_.push_back(add_tensor(spec, false, false));
  return inputs_.back();
}
int Graph::virtual_tensor(const TensorSpec& spec) { return add_tensor(spec, true, false); }
int Graph::scalar(float value, int64_t rank) {
  const Dims ones(static_cast<size_t>(rank), 1);
  const int id = add_tensor({ones, ones, CUDNN_DATA_FLOAT}, false, true);
  scalars_.emplace_back(id, value);
  return id;
}

Descriptor& Graph::op(cudnnBackendDescriptorType_t type) { return ops_.emplace_back(type); }

void Graph::pointwise(cudnnPointwiseMode_t mode, int x, int b, int y, int predicate, int64_t axis) {
  Descriptor& d = helpers_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  d.set_type(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  if (axis >= 0) {
    d.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  }
  expect(d.finalize(), "a pointwise mode");
  Descriptor& o = op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensors_[size_t(x)]);
  if (b >= 0) {
    o.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensors_[size_t(b)]);
  }
  if (predicate >= 0) {
    o.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, tensors_[size_t(predicate)]);
  }
  o.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensors_[size_t(y)]);
  expect(o.finalize(), "a pointwise operation");
}

void Graph::matmul(int a, int b, int c) {
  Descriptor& d = helpers_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  d.set_type(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  expect(d.finalize(), "a product's type");
  Descriptor& o = op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensors_[size_t(a)]);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensors_[size_t(b)]);
  o.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensors_[size_t(c)]);
  expect(o.finalize(), "a product");
}

void Graph::reduce(cudnnReduceTensorOp_t operation, int x, int y) {
  Descriptor& d = helpers_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  d.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation);
  d.set_type(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  expect(d.finalize(), "a reduction's type");
  Descriptor& o = op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
  o.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensors_[size_t(x)]);
  o.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensors_[size_t(y)]);
  expect(o.finalize(), "a reduction");
}

void Graph::reshape(int x, int y) {
  Descriptor& o = op(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  o.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensors_[size_t(x)]);
  o.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensors_[size_t(y)]);
  expect(o.finalize(), "a transposition");
}

void Graph::convolution(const PenstockGraph& g, int x, int w, int y) {
  Descriptor& d = helpers_.emplace_back(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const int64_t spatial = g.spatial;
  const int64_t skip = 3 - spatial;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  d.set_type(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  d.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  d.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, spatial);
  d.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, spatial, g.stride + skip);
  d.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, spatial, g.pad + skip);
  d.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, spatial, g.pad + skip);
  d.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, spatial, g.dilation + skip);
  expect(d.finalize(), "a convolution's geometry");
  const float one = 1;
  const float zero = 0;
  switch (g.kind) {
    case kPenstockConvForward: {
      Descriptor& o = op(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, tensors_[size_t(x)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, tensors_[size_t(w)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, tensors_[size_t(y)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, d);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
      expect(o.finalize(), "a convolution");
      return;
    }
    case kPenstockConvBackwardData: {
      Descriptor& o = op(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, tensors_[size_t(x)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, tensors_[size_t(w)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, tensors_[size_t(y)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, d);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
      expect(o.finalize(), "a convolution's data gradient");
      return;
    }
    default: {
      Descriptor& o = op(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, tensors_[size_t(x)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, tensors_[size_t(w)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, tensors_[size_t(y)]);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, d);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, 1, &one);
      o.set(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, 1, &zero);
      expect(o.finalize(), "a convolution's weight gradient");
      return;
    }
  }
}

namespace {

// [N, C, (D,) H, W] as cuDNN names dimensions, with channels last in memory.
TensorSpec image(const PenstockGraph& g, int64_t channels, const int64_t* extent, int32_t dtype) {
  TensorSpec s;
  s.type = dnn_type(dtype);
  s.dims = {g.n, channels};
  for (int i = 3 - g.spatial; i < 3; ++i) {
    s.dims.push_back(extent[i]);
  }
  s.strides.assign(s.dims.size(), 1);
  int64_t stride = channels;
  for (size_t i = s.dims.size(); i-- > 2;) {
    s.strides[i] = stride;
    stride *= s.dims[i];
  }
  s.strides[0] = stride;
  return s;
}

TensorSpec filter(const PenstockGraph& g, int32_t dtype) {
  PenstockGraph as_image = g;
  as_image.n = g.k;
  return image(as_image, g.c / g.groups, g.kernel, dtype);
}

}  // namespace

std::shared_ptr<Graph> build_graph(const PenstockGraph& g, PenstockError* error) {
  auto graph = std::make_shared<Graph>();
  switch (g.kind) {
    case kPenstockConvForward: {
      const int x = graph->input(image(g, g.c, g.in, g.dtype));
      const int w = graph->input(filter(g, g.dtype));
      const TensorSpec out = image(g, g.k, g.out, g.dtype);
      const int y = graph->output(out);
      if (!g.with_bias && !g.relu) {
        graph->convolution(g, x, w, y);
        break;
      }
      TensorSpec inner = out;
      inner.type = CUDNN_DATA_FLOAT;
      int last = graph->virtual_tensor(inner);
      graph->convolution(g, x, w, last);
      if (g.with_bias) {
        PenstockGraph one = g;
        one.n = 1;
        const int64_t ones[3] = {1, 1, 1};
        const int bias = graph->input(image(one, g.k, ones, g.dtype));
        const int sum = g.relu ? graph->virtual_tensor(inner) : y;
        graph->pointwise(CUDNN_POINTWISE_ADD, last, bias, sum);
        last = sum;
      }
      if (g.relu) {
        graph->pointwise(CUDNN_POINTWISE_RELU_FWD, last, -1, y);
      }
      break;
    }
    case kPenstockConvBackwardData: {
      const int dy = graph->input(image(g, g.k, g.out, g.dtype));
      const int w = graph->input(filter(g, g.dtype));
      graph->convolution(g, dy, w, graph->output(image(g, g.c, g.in, g.dtype)));
      break;
    }
    case kPenstockConvBackwardWeights: {
      const int x = graph->input(image(g, g.c, g.in, g.dtype));
      const int dy = graph->input(image(g, g.k, g.out, g.dtype));
      graph->convolution(g, x, dy, graph->output(filter(g, g.dtype_out)));
      break;
    }
    case kPenstockAttentionForward: build_attention_forward(*graph, g); break;
    case kPenstockAttentionBackward: build_attention_backward(*graph, g); break;
    default: set_error(error, "cuDNN: unknown graph kind %d", int(g.kind)); return nullptr;
  }
  if (!graph->ok()) {
    set_error(error, "cuDNN: %s was refused", graph->failed());
    return nullptr;
  }
  return graph;
}

}  // namespace penstock_cuda
