// Every op, in one table: what it is fed, how it is called, and how exact each dtype must be. The
// tests, the benchmark of ops and the ledger check read the same rows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "framework/core/tensor.h"

namespace penstock::testing_ops {

struct Input {
  Shape shape;
  double low = -2;
  double high = 2;
  // Not a float: indices or targets below `classes`, of this dtype; never differentiated.
  bool index = false;
  DType index_dtype = DType::i64;
  i64 classes = 0;
  bool boolean = false;
  bool wide = false;           // stays f32 (f64 in f64) when the rest is 16-bit: norm parameters
  bool differentiable = true;
  bool distinct = false;       // evenly spaced values in random order: no ties for a maximum
};

struct OpCase {
  std::string name;
  std::vector<Input> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> call;
  double tolerance = 1;   // times the dtype's base bound
  bool half = true;       // f16 and bf16 are supported
  bool zero_size = false; // some dimension is 0
};

// A row of the table for each op and shape.
const std::vector<OpCase>& op_table();

}  // namespace penstock::testing_ops
