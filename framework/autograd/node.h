// The graph's nodes; only the engine and mixed precision look inside.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/autograd/autograd.h"

namespace penstock {

// State of a leaf, shared by all its appearances in graphs.
struct LeafState {
  std::string name;
  Tensor value;
  Tensor grad;
  std::array<Tensor, 2> low_precision;  // f16, bf16
  std::uint32_t version = 0;
  bool written = false;  // the sink holds something of this accumulation
};

struct Edge {
  std::shared_ptr<GradNode> node;
  int output = 0;
  Shape shape;  // of the input: gradients are summed to it
  DType dtype = DType::f32;
  std::uint32_t version = 0;  // of the leaf when recorded
};

struct GradNode {
  const char* op = "";
  std::uint64_t sequence = 0;  // creation order: every input has a lower one
  std::vector<Edge> inputs;
  BackwardFn backward;
  std::unique_ptr<LeafState> leaf;

  // Used while a backward runs.
  std::vector<Tensor> grads;  // by output
  int pending = 0;            // consumers that have not delivered yet
  bool visited = false;
  bool spent = false;

  GradNode() = default;
  GradNode(const GradNode&) = delete;
  GradNode& operator=(const GradNode&) = delete;
  ~GradNode();
};

}  // namespace penstock
