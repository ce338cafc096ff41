// Running a cuDNN graph: choosing its plan once, and the workspace it needs.
#pragma once

#include <string>
#include <vector>

#include "framework/core/tensor.h"
#include "framework/kernels/cuda_plugin.h"

namespace penstock::kernels {

struct GraphCall {
  PenstockGraph graph{};
  std::vector<Tensor> tensors;    // in the order of the graph's kind; null on meta
  std::vector<std::size_t> written;  // which of them the graph writes: timed into scratch instead
  std::vector<i64> offsets;       // bytes added to each tensor's address; empty: none
  Device device;
};

// Does the library have an engine for the graph? Asked once per graph; on machines without a GPU the
// answer is yes (the plan then is an upper bound).
bool graph_supported(const PenstockGraph& graph);
// Runs the graph; throws DeviceError when there is no engine. On meta it holds what a call would.
void run_graph(const GraphCall& call);
// The chosen engine's name; empty before the choice.
std::string graph_engine(const PenstockGraph& graph);

}  // namespace penstock::kernels
