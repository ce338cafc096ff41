#include "framework/core/tensor.h"

#include <cstring>
#include <utility>

#include "framework/core/cuda.h"
#include "framework/core/ledger.h"

namespace penstock {
namespace {

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, i64 bytes) {
  if (bytes == 0 || to_device.is_meta() || from_device.is_meta()) {
    return;
  }
  if (to_device.is_cpu() && from_device.is_cpu()) {
    std::memcpy(to, from, std::size_t(bytes));
    return;
  }
  cuda::copy_async(to, from, bytes, cuda::compute_stream());
  if (to_device.is_cpu() || from_device.is_cpu()) {
    cuda::synchronize(cuda::compute_stream());
  }
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device, MemoryClass memory_class) {
  check(!(dtype == DType::f64 && device.is_cuda()), "tensor: f64 exists on the CPU only");
  Tensor t;
  t.shape_ = shape;
  t.dtype_ = dtype;
  t.storage_ = memory::allocate(device, shape.numel() * size_of(dtype), memory_class);
  return t;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device, MemoryClass memory_class) {
  Tensor t = empty(shape, dtype, device, memory_class);
  t.fill_zero();
  return t;
}

Tensor Tensor::from_bytes(const void* values, i64 count, const Shape& shape, DType dtype,
                          Device device) {
  check(count == shape.numel(), "tensor: {} values for shape {}", count, shape);
  Tensor t = empty(shape, dtype, device);
  copy_bytes(t.raw(), device, values, penstock::kCpu, t.bytes());
  return t;
}

Tensor Tensor::view(const Shape& shape) const {
  check(shape.numel() == numel(), "view: shape {} does not hold the {} elements of {}", shape,
        numel(), shape_);
  return part(0, shape);
}

Tensor Tensor::rows(i64 begin, i64 end) const {
  check(rank() >= 1 && begin >= 0 && begin <= end && end <= dim(0), "rows: [{}, {}) of {}", begin,
        end, shape_);
  return part(begin * shape_.numel(1, rank()), shape_.with(0, end - begin));
}

Tensor Tensor::part(i64 begin, const Shape& shape) const {
  check(begin >= 0 && begin + shape.numel() <= numel(), "part: {} elements from {} exceed {}",
        shape.numel(), begin, shape_);
  Tensor t = detached();
  t.shape_ = shape;
  t.offset_ += begin * size_of(dtype_);
  return t;
}

Tensor Tensor::viewed_as(DType dtype, const Shape& shape) const {
  check(shape.numel() * size_of(dtype) <= bytes(), "viewed_as: {} of {} exceed {}", dtype, shape,
        *this);
  Tensor t = detached();
  t.shape_ = shape;
  t.dtype_ = dtype;
  return t;
}

Tensor Tensor::to(Device device, MemoryClass memory_class) const {
  Tensor t = empty(shape_, dtype_, device, memory_class);
  t.copy_from(*this);
  return t;
}

void Tensor::copy_from(const Tensor& source) const {
  check(source.dtype_ == dtype_ && source.numel() == numel(), "copy: {} into {}", source, *this);
  ledger::kernel({&source}, {this});
  copy_bytes(raw(), device(), source.raw(), source.device(), bytes());
}

void Tensor::load_host(const void* values) const {
  copy_bytes(raw(), device(), values, penstock::kCpu, bytes());
}

void Tensor::store_host(void* values) const {
  copy_bytes(values, penstock::kCpu, raw(), device(), bytes());
}

void Tensor::fill_zero() const {
  ledger::kernel({}, {this});
  if (bytes() == 0 || device().is_meta()) {
    return;
  }
  if (device().is_cpu()) {
    std::memset(raw(), 0, std::size_t(bytes()));
  } else {
    cuda::fill_async(raw(), 0, bytes(), cuda::compute_stream());
  }
}

template <class T>
std::vector<T> Tensor::values() const {
  check(!device().is_meta(), "values: a meta tensor has no values");
  std::vector<T> out(static_cast<std::size_t>(numel()));
  const PersistentScope persistent;
  const Tensor host = device().is_cpu() ? *this : to(penstock::kCpu);
  visit_any(dtype_, [&]<class S>() {
    const S* from = host.data<S>();
    for (std::size_t i = 0; i < out.size(); ++i) {
      if constexpr (std::is_same_v<S, bf16> || std::is_same_v<S, f16>) {
        out[i] = T(float(from[i]));
      } else {
        out[i] = T(from[i]);
      }
    }
  });
  return out;
}
template std::vector<double> Tensor::values() const;
template std::vector<float> Tensor::values() const;
template std::vector<std::int64_t> Tensor::values() const;
template std::vector<std::int32_t> Tensor::values() const;
template std::vector<std::uint8_t> Tensor::values() const;

double Tensor::item() const {
  check(numel() == 1, "item: {} has {} elements, 1 is needed", *this, numel());
  return values<double>()[0];
}

Tensor Tensor::with_node(std::shared_ptr<GradNode> node, int output) const {
  Tensor t = *this;
  t.node_ = std::move(node);
  t.output_ = output;
  return t;
}

Tensor Tensor::detached() const {
  return with_node(nullptr);
}

Tensor keep(const Tensor& x) {
  const PersistentScope persistent;
  return x.to(x.device(), x.memory_class());
}

std::string to_string(const Tensor& x) {
  return x.defined() ? format("{}{} on {}", x.dtype(), x.shape(), x.device()) : "(undefined)";
}

}  // namespace penstock
