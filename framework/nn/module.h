// Modules declare parameters, buffers and children by dotted names; a ParameterArena gives them
// memory. Declaring costs nothing, so a model can be built to be planned.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "framework/core/tensor.h"
#include "framework/nn/init.h"

namespace penstock::nn {

struct Parameter {
  std::string name;  // within its module
  Shape shape;
  Init init;
  bool decay = true;  // weight decay applies
  Tensor value;       // a leaf once an arena holds it

  operator const Tensor&() const { return value; }  // NOLINT(google-explicit-constructor)
};

// State that no gradient reaches: batch norm's running statistics. A training step writes `shadow`;
// the optimizer's launch commits it, or resets it when the step was bad.
struct Buffer {
  std::string name;
  Shape shape;
  float initial = 0;
  Tensor value;   // f32
  Tensor shadow;  // f32
};

class Module {
 public:
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  virtual ~Module() = default;

  // Training mode of this module and everything below it (dropout, batch statistics).
  void set_training(bool on);
  bool training() const { return training_; }

  // Every parameter or buffer below, with its dotted name ("layer1.0.conv1.weight"), in order of
  // declaration.
  void visit_parameters(const std::function<void(const std::string&, Parameter&)>& visit);
  void visit_buffers(const std::function<void(const std::string&, Buffer&)>& visit);
  i64 parameter_count();

 protected:
  Parameter& parameter(const std::string& name, const Shape& shape, const Init& init,
                       bool decay = true);
  Buffer& buffer(const std::string& name, const Shape& shape, float initial);
  // `child` must live as long as this module.
  void child(const std::string& name, Module& child);

 private:
  std::deque<Parameter> parameters_;  // a deque: references stay good
  std::deque<Buffer> buffers_;
  std::vector<std::pair<std::string, Module*>> children_;
  bool training_ = true;
};

}  // namespace penstock::nn
