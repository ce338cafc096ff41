#include "framework/ops/shape_ops.h"

#include <algorithm>
#include <array>

#include "framework/autograd/amp.h"
#include "framework/autograd/autograd.h"
#include "framework/core/ledger.h"
#include "framework/core/trace.h"
#include "framework/kernels/basic.h"
#include "framework/kernels/rows.h"

namespace penstock::ops {
namespace {

// y[i] for each output index i: input offset = base + sum of (index along axis) * step.
template <class T>
struct Gather {
  static constexpr bool kCpuOnly = false;
  T* y;
  const T* x;
  int rank;
  i64 dims[Shape::kMaxRank];
  i64 steps[Shape::kMaxRank];
  i64 base;

  template <class Index>
  PENSTOCK_HD i64 source(Index i, int end) const {
    i64 at = base;
    for (int axis = end - 1; axis >= 0; --axis) {
      const Index d = Index(dims[axis]);
      const Index q = i / d;
      at += i64(i - q * d) * steps[axis];
      i = q;
    }
    return at;
  }
  // CPU: one row of the last axis.
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 row) const {
    const i64 n = dims[rank - 1];
    const i64 step = steps[rank - 1];
    const T* from = x + source(row, rank - 1);
    T* to = y + row * n;
    if (step == 1) {
      team.each(n, [&](i64 i) { to[i] = from[i]; });
    } else {
      team.each(n, [&](i64 i) { to[i] = from[i * step]; });
    }
  }
  // CUDA: one element.
  PENSTOCK_HD void operator()(i64 i) const {
    y[i] = x[i < (i64(1) << 31) ? source(std::uint32_t(i), rank) : source(i, rank)];
  }
};

// A copy of x seen with other dimensions, steps (in elements) and a first element.
Tensor gather(const char* name, const Tensor& x, const Shape& shape,
              const std::array<i64, Shape::kMaxRank>& steps, i64 base) {
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  ledger::bytes(x.memory_class(), double(y.bytes()), 0);
  ledger::kernel({}, {&y});
  if (y.numel() == 0) {
    return y;
  }
  (void)name;
  // Moving bytes: one instantiation for each element size.
  const auto run = [&]<class T>() {
    Gather<T> g{};
    g.y = static_cast<T*>(y.raw());
    g.x = static_cast<const T*>(x.raw());
    g.base = base;
    // Merge axes that advance together.
    int rank = 0;
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == 1) {
        continue;
      }
      if (rank > 0 && g.steps[rank - 1] == steps[std::size_t(i)] * shape[i]) {
        g.dims[rank - 1] *= shape[i];
        g.steps[rank - 1] = steps[std::size_t(i)];
      } else {
        g.dims[rank] = shape[i];
        g.steps[rank] = steps[std::size_t(i)];
        ++rank;
      }
    }
    if (rank == 0) {
      g.dims[0] = 1;
      rank = 1;
    }
    g.rank = rank;
    if (y.device().is_cpu()) {
      kernels::for_each_row(y.device(), y.numel() / g.dims[rank - 1], g.dims[rank - 1], g);
    } else {
      kernels::for_each(y.device(), y.numel(), g);
    }
  };
  switch (size_of(x.dtype())) {
    case 1: run.template operator()<std::uint8_t>(); break;
    case 2: run.template operator()<std::uint16_t>(); break;
    case 4: run.template operator()<std::uint32_t>(); break;
    default: run.template operator()<std::uint64_t>(); break;
  }
  return y;
}

std::array<i64, Shape::kMaxRank> dense_steps(const Shape& shape) {
  std::array<i64, Shape::kMaxRank> steps{};
  i64 step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    steps[std::size_t(i)] = step;
    step *= shape[i];
  }
  return steps;
}

Tensor permuted(const Tensor& x, std::span<const int> axes) {
  const auto steps = dense_steps(x.shape());
  std::array<i64, Shape::kMaxRank> out_steps{};
  std::array<i64, Shape::kMaxRank> dims{};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    dims[i] = x.dim(axes[i]);
    out_steps[i] = steps[std::size_t(axes[i])];
  }
  return gather("permute", x, Shape(std::span<const i64>(dims.data(), axes.size())), out_steps, 0);
}

// Writes `part` into rows of y along an axis: y seen as [outer, total, inner].
template <class T>
struct Place {
  T* y;
  const T* part;
  i64 count;  // of the part along the axis, times inner
  i64 total;  // of y along the axis, times inner
  i64 begin;  // times inner
  i64 step;   // 1, or the slice's step with inner == count of one element
  i64 inner;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 outer) const {
    T* to = y + outer * total + begin;
    const T* from = part + outer * count;
    if (step == 1) {
      team.each(count, [&](i64 i) { to[i] = from[i]; });
    } else {
      team.each(count, [&](i64 i) { to[(i / inner) * step * inner + i % inner] = from[i]; });
    }
  }
};

void place(const Tensor& y, const Tensor& part, int axis, i64 begin, i64 step) {
  ledger::bytes(y.memory_class(), 0, double(part.bytes()));
  ledger::kernel({&part}, {});
  if (part.numel() == 0) {
    return;
  }
  const i64 inner = y.shape().numel(axis + 1, y.rank());
  const i64 outer = y.shape().numel(0, axis);
  const auto run = [&]<class T>() {
    kernels::for_each_row(
        y.device(), outer, part.dim(axis) * inner,
        Place<T>{static_cast<T*>(y.raw()), static_cast<const T*>(part.raw()),
                 part.dim(axis) * inner, y.dim(axis) * inner, begin * inner, step, inner});
  };
  switch (size_of(y.dtype())) {
    case 1: run.template operator()<std::uint8_t>(); break;
    case 2: run.template operator()<std::uint16_t>(); break;
    case 4: run.template operator()<std::uint32_t>(); break;
    default: run.template operator()<std::uint64_t>(); break;
  }
}

Tensor sliced(const Tensor& x, int axis, i64 begin, i64 end, i64 step) {
  auto steps = dense_steps(x.shape());
  const i64 base = begin * steps[std::size_t(axis)];
  steps[std::size_t(axis)] *= step;
  return gather("slice", x, x.shape().with(axis, (end - begin + step - 1) / step), steps, base);
}

}  // namespace

Tensor reshape(const Tensor& x, std::initializer_list<i64> dims) {
  std::array<i64, Shape::kMaxRank> out{};
  i64 known = 1;
  int open = -1;
  int rank = 0;
  for (const i64 d : dims) {
    check(rank < Shape::kMaxRank, "reshape: more than {} dimensions", Shape::kMaxRank);
    if (d == -1) {
      check(open < 0, "reshape: two dimensions of {} are open", x.shape());
      open = rank;
    } else {
      known *= d;
    }
    out[std::size_t(rank++)] = d;
  }
  if (open >= 0) {
    check(known > 0 && x.numel() % known == 0, "reshape: {} does not divide into rows of {}",
          x.shape(), known);
    out[std::size_t(open)] = x.numel() / known;
  }
  return reshape(x, Shape(std::span<const i64>(out.data(), std::size_t(rank))));
}

Tensor reshape(const Tensor& x, const Shape& shape) {
  const trace::Op op("reshape");
  return record("reshape", x.view(shape), {x},
                [before = x.shape()](Backward& b) { b.set(0, b.dy().view(before)); });
}

Tensor permute(const Tensor& x, std::initializer_list<int> axes) {
  return permute(x, std::span<const int>(axes.begin(), axes.size()));
}

Tensor permute(const Tensor& x, std::span<const int> axes_) {
  const trace::Op op("permute");
  check(int(axes_.size()) == x.rank(), "permute: {} axes for {}", axes_.size(), x);
  std::vector<int> axes;
  std::vector<int> inverse(axes_.size(), -1);
  for (const int a : axes_) {
    const int axis = x.shape().axis(a, "permute");
    check(inverse[std::size_t(axis)] < 0, "permute: axis {} appears twice", axis);
    inverse[std::size_t(axis)] = int(axes.size());
    axes.push_back(axis);
  }
  return record("permute", permuted(x, axes), {x},
                [inverse](Backward& b) { b.set(0, permuted(b.dy(), inverse)); });
}

Tensor transpose(const Tensor& x, int a, int b) {
  const trace::Op op("transpose");
  std::vector<int> axes(static_cast<std::size_t>(x.rank()));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    axes[i] = int(i);
  }
  std::swap(axes[std::size_t(x.shape().axis(a, "transpose"))],
            axes[std::size_t(x.shape().axis(b, "transpose"))]);
  return permute(x, axes);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) {
    return x;
  }
  const trace::Op op("expand");
  check(broadcast(x.shape(), shape, "expand") == shape, "expand: {} to {}", x, shape);
  const auto dense = dense_steps(x.shape());
  std::array<i64, Shape::kMaxRank> steps{};
  const int added = shape.rank() - x.rank();
  for (int i = 0; i < x.rank(); ++i) {
    steps[std::size_t(i + added)] = x.dim(i) == 1 ? 0 : dense[std::size_t(i)];
  }
  // The engine sums a gradient of the wide shape back to x's.
  return record("expand", gather("expand", x, shape, steps, 0), {x},
                [](Backward& b) { b.set(0, b.dy()); });
}

Tensor concat(const std::vector<Tensor>& parts, int axis_) {
  const trace::Op op("concat");
  check(!parts.empty(), "concat: nothing to join");
  const int axis = parts[0].shape().axis(axis_, "concat");
  i64 total = 0;
  for (const Tensor& p : parts) {
    check(p.rank() == parts[0].rank() && p.dtype() == parts[0].dtype() &&
              p.shape().with(axis, 0) == parts[0].shape().with(axis, 0),
          "concat: {} and {} differ outside of axis {}", parts[0], p, axis);
    total += p.dim(axis);
  }
  const Tensor y =
      Tensor::empty(parts[0].shape().with(axis, total), parts[0].dtype(), parts[0].device());
  i64 begin = 0;
  std::vector<i64> begins;
  for (const Tensor& p : parts) {
    place(y, p, axis, begin, 1);
    begins.push_back(begin);
    begin += p.dim(axis);
  }
  begins.push_back(begin);
  return record_all("concat", {y}, parts, [axis, begins](Backward& b) {
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      if (b.wants(int(i))) {
        b.set(int(i), sliced(b.dy(), axis, begins[i], begins[i + 1], 1));
      }
    }
  })[0];
}

Tensor slice(const Tensor& x, int axis_, i64 begin, i64 end, i64 step) {
  const trace::Op op("slice");
  const int axis = x.shape().axis(axis_, "slice");
  check(begin >= 0 && begin <= end && end <= x.dim(axis) && step >= 1,
        "slice: [{}, {}) by {} of axis {} of {}", begin, end, step, axis, x);
  return record("slice", sliced(x, axis, begin, end, step), {x},
                [shape = x.shape(), axis, begin, step](Backward& b) {
                  const Tensor dx = Tensor::zeros(shape, b.dy().dtype(), b.dy().device());
                  place(dx, b.dy(), axis, begin, step);
                  b.set(0, dx);
                });
}

Tensor pad(const Tensor& x, int axis_, i64 before, i64 after, double value) {
  const trace::Op op("pad");
  const int axis = x.shape().axis(axis_, "pad");
  check(before >= 0 && after >= 0, "pad: {} and {} elements; expected none or more", before, after);
  const i64 n = x.dim(axis);
  const Tensor y = Tensor::empty(x.shape().with(axis, before + n + after), x.dtype(), x.device());
  if (value == 0) {
    y.fill_zero();
  } else {
    kernels::fill(y, value);
  }
  place(y, x, axis, before, 1);
  return record("pad", y, {x}, [axis, before, n](Backward& b) {
    b.set(0, sliced(b.dy(), axis, before, before + n, 1));
  });
}

namespace {

template <class T, class Index>
struct Lookup {
  T* y;
  const T* table;
  const Index* ids;
  i64 width, rows;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 i) const {
    const i64 id = i64(ids[i]);
    const T* from = table + (id >= 0 && id < rows ? id : 0) * width;
    T* to = y + i * width;
    team.each(width, [&](i64 k) { to[k] = from[k]; });
  }
};

// Group g owns the table rows with id % groups == g, and adds their gradients in the order of the
// indices: no two groups write one row, so no atomics, and the order never varies.
template <class T, class S, class Index>
struct Scatter {
  static constexpr bool kCpuOnly = std::is_same_v<T, double>;
  S* grad;
  const T* dy;
  const Index* ids;
  i64 count, width, rows, groups;
  template <class Team>
  PENSTOCK_HD void operator()(const Team& team, i64 group) const {
    const auto ours = [&](i64 i) {
      const i64 id = i64(ids[i]);
      return id >= 0 && id < rows && id % groups == group;
    };
    team.each_match(count, ours, [&](i64 i) {
      S* to = grad + i64(ids[i]) * width;
      const T* from = dy + i * width;
      team.each(width, [&](i64 k) { to[k] += S(kernels::load(from[k])); });
    });
  }
};

template <class Index>
void check_ids(const Tensor& ids, i64 rows) {
  const Index* p = ids.data<Index>();
  for (i64 i = 0; i < ids.numel(); ++i) {
    check(i64(p[i]) >= 0 && i64(p[i]) < rows, "embedding: index {} at {} is outside [0, {})",
          i64(p[i]), i, rows);
  }
}

void scatter(const Tensor& grad, const Tensor& dy, const Tensor& ids, i64 width, i64 rows) {
  ledger::bytes(grad.memory_class(), double(dy.numel()) * 4, double(dy.numel()) * 4);
  ledger::kernel({&dy, &ids}, {}, double(dy.numel()));
  const i64 groups = std::min<i64>(rows, grad.device().is_cpu() ? 64 : 2048);
  visit_float(dy.dtype(), "embedding", [&]<class T>() {
    using S = compute_t<T>;
    visit_index(ids.dtype(), "embedding", [&]<class Index>() {
      kernels::for_each_row(grad.device(), groups, width,
                            Scatter<T, S, Index>{grad.data<S>(), dy.data<T>(), ids.data<Index>(),
                                                 ids.numel(), width, rows, groups});
    });
  });
}

}  // namespace

Tensor embedding(const Tensor& table_, const Tensor& ids) {
  const trace::Op op("embedding");
  const Tensor table = std::get<0>(amp::prepare(amp::Cast::kCompute, table_));
  check(table.rank() >= 1 && table.dim(0) > 0, "embedding: table {}; expected [V, ...]", table);
  const i64 rows = table.dim(0);
  const i64 width = table.numel() / rows;
  if (ids.device().is_cpu()) {
    visit_index(ids.dtype(), "embedding", [&]<class Index>() { check_ids<Index>(ids, rows); });
  }
  Shape shape = ids.shape();
  for (int i = 1; i < table.rank(); ++i) {
    shape = shape.inserted(shape.rank(), table.dim(i));
  }
  const Tensor y = Tensor::empty(shape, table.dtype(), table.device());
  ledger::bytes(table.memory_class(), double(y.bytes()), 0);
  ledger::kernel({&ids}, {&y});
  visit_float(table.dtype(), "embedding", [&]<class T>() {
    visit_index(ids.dtype(), "embedding", [&]<class Index>() {
      kernels::for_each_row(
          y.device(), ids.numel(), width,
          Lookup<T, Index>{y.data<T>(), table.data<T>(), ids.data<Index>(), width, rows});
    });
  });
  return record("embedding", y, {table}, [ids, width, rows, shape = table.shape()](Backward& b) {
    if (b.has_sink(0)) {
      const Sink sink = b.sink(0);
      if (sink.beta == 0) {
        sink.grad.fill_zero();
      }
      scatter(sink.grad, b.dy(), ids, width, rows);
      return;
    }
    const Tensor grad = Tensor::zeros(shape, b.dy().dtype() == DType::f64 ? DType::f64 : DType::f32,
                                      b.dy().device());
    scatter(grad, b.dy(), ids, width, rows);
    b.set(0, grad);
  });
}

}  // namespace penstock::ops
