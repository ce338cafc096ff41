// Problems made ready to run: primitives, their memory and where each piece of it comes from.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "framework/kernels/onednn_plugin.h"

namespace penstock_onednn {

// Memory of a primitive that lies at `offset` in one of the caller's pointers.
enum class Source : std::uint8_t { kA, kB, kBias, kC, kWorkspace };
struct Bound {
  dnnl::memory memory;
  Source source;
  std::uint64_t offset = 0;
};

// Primitives that run one after the other.
struct Stage {
  dnnl::primitive primitive;
  std::vector<dnnl_exec_arg_t> args;
};

class Problem {
 public:
  Problem() = default;
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  // Throws dnnl::error. One run at a time; a second caller waits.
  void run(const PenstockOnednnCall& call);

  std::string name;
  std::uint64_t workspace = 0;  // bytes
  int threads = 1;
  std::atomic<std::int64_t> users{0};  // the cache is one of them
  std::uint64_t last_use = 0;          // of the cache's clock

 private:
  friend class Builder;
  std::mutex mutex_;
  std::vector<Bound> bound_;
  std::vector<Stage> stages_;
  bool sgemm_ = false;
  PenstockOnednnMatmul matmul_{};  // when sgemm_
};

// No optimised implementation exists.
struct Unsupported {
  std::string why;
};

// Throw Unsupported or dnnl::error.
void build(Problem& problem, const PenstockOnednnMatmul& matmul);
void build(Problem& problem, const PenstockOnednnConv& conv);

}  // namespace penstock_onednn
