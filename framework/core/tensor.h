// The one tensor type: a value of storage, offset, shape, dtype, device and, when gradients are
// wanted, an edge of the graph. Always contiguous and row-major; copies share the storage.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "framework/core/device.h"
#include "framework/core/dtype.h"
#include "framework/core/memory.h"
#include "framework/core/shape.h"

namespace penstock {

struct GradNode;  // framework/autograd/autograd.h

class Tensor {
 public:
  // Undefined: what an op returns where there is nothing.
  Tensor() = default;

  // Not initialised; in the step region inside a StepScope of `device`, else in the persistent one.
  static Tensor empty(const Shape& shape, DType dtype, Device device,
                      MemoryClass memory_class = MemoryClass::kActivations);
  static Tensor zeros(const Shape& shape, DType dtype, Device device,
                      MemoryClass memory_class = MemoryClass::kActivations);
  // A copy of host values; `values` must hold shape.numel() elements of T.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, Device device) {
    return from_bytes(values.data(), i64(values.size()), shape, dtype_of<T>, device);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape, Device device) {
    return from(std::span<const T>(values), shape, device);
  }

  bool defined() const { return storage_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  i64 dim(int axis) const { return shape_[axis]; }
  i64 numel() const { return shape_.numel(); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_ ? storage_->device : Device{}; }
  i64 bytes() const { return numel() * size_of(dtype_); }
  MemoryClass memory_class() const {
    return storage_ ? storage_->memory_class : MemoryClass::kActivations;
  }

  // Address of the first element; null on meta. data<T>() checks the dtype.
  void* raw() const {
    return storage_ && storage_->data ? static_cast<char*>(storage_->data) + offset_ : nullptr;
  }
  template <class T>
  T* data() const {
    check(dtype_ == dtype_of<T>, "tensor: data<{}>() of a {} tensor", dtype_of<T>, dtype_);
    return static_cast<T*>(raw());
  }

  // Views of the same storage, without a graph edge (ops::reshape records one).
  Tensor view(const Shape& shape) const;
  // Rows [begin, end) of the first dimension.
  Tensor rows(i64 begin, i64 end) const;
  // `count` elements from element `begin` of the flattened tensor, as `shape`.
  Tensor part(i64 begin, const Shape& shape) const;
  // The same bytes read as another dtype of the same size per element group: used by arenas only.
  Tensor viewed_as(DType dtype, const Shape& shape) const;

  // A copy in the same or another region and device, without a graph edge. To the host it waits.
  Tensor to(Device device, MemoryClass memory_class = MemoryClass::kActivations) const;
  // Writes the elements of `source` (same dtype and count, any device) here.
  void copy_from(const Tensor& source) const;
  // Writes bytes() bytes of host memory here, and waits until they may be reused.
  void load_host(const void* values) const;
  // Copies bytes() bytes to host memory, and waits for them.
  void store_host(void* values) const;
  void fill_zero() const;
  // The elements on the host, converted to T; waits for the device. For logs and tests.
  template <class T>
  std::vector<T> values() const;
  // values()[0] of a one-element tensor.
  double item() const;

  // The graph edge: which node made this, as which of its outputs.
  const std::shared_ptr<GradNode>& node() const { return node_; }
  int output() const { return output_; }
  Tensor with_node(std::shared_ptr<GradNode> node, int output = 0) const;
  // The same values without a graph edge.
  Tensor detached() const;
  bool needs_grad() const { return node_ != nullptr; }

  const std::shared_ptr<Storage>& storage() const { return storage_; }

 private:
  static Tensor from_bytes(const void* values, i64 count, const Shape& shape, DType dtype,
                           Device device);

  std::shared_ptr<Storage> storage_;
  std::shared_ptr<GradNode> node_;
  i64 offset_ = 0;  // bytes
  Shape shape_;
  int output_ = 0;
  DType dtype_ = DType::f32;
};

// A copy of `x` that outlives the step: persistent region, no graph edge.
Tensor keep(const Tensor& x);

// "f32[64, 10] on cpu".
std::string to_string(const Tensor& x);

}  // namespace penstock
