#include "framework/nn/module.h"

namespace penstock::nn {

Parameter& Module::parameter(const std::string& name, const Shape& shape, const Init& init,
                             bool decay) {
  parameters_.push_back({.name = name, .shape = shape, .init = init, .decay = decay, .value = {}});
  return parameters_.back();
}

Buffer& Module::buffer(const std::string& name, const Shape& shape, float initial) {
  buffers_.push_back({.name = name, .shape = shape, .initial = initial, .value = {}, .shadow = {}});
  return buffers_.back();
}

void Module::child(const std::string& name, Module& child) { children_.emplace_back(name, &child); }

void Module::set_training(bool on) {
  training_ = on;
  for (auto& [name, m] : children_) {
    m->set_training(on);
  }
}

void Module::visit_parameters(const std::function<void(const std::string&, Parameter&)>& visit) {
  for (Parameter& p : parameters_) {
    visit(p.name, p);
  }
  for (auto& [prefix, m] : children_) {
    const std::string& dotted = prefix;
    m->visit_parameters(
        [&](const std::string& name, Parameter& p) { visit(dotted + "." + name, p); });
  }
}

void Module::visit_buffers(const std::function<void(const std::string&, Buffer&)>& visit) {
  for (Buffer& b : buffers_) {
    visit(b.name, b);
  }
  for (auto& [prefix, m] : children_) {
    const std::string& dotted = prefix;
    m->visit_buffers([&](const std::string& name, Buffer& b) { visit(dotted + "." + name, b); });
  }
}

i64 Module::parameter_count() {
  i64 count = 0;
  visit_parameters([&](const std::string&, Parameter& p) { count += p.shape.numel(); });
  return count;
}

}  // namespace penstock::nn
