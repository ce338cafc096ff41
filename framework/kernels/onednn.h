// The oneDNN plugin as the main library sees it: opened on first use, absent on machines without
// it. All results are the same bits for the same threads and instruction set.
#pragma once

#include <string>

#include "framework/core/tensor.h"
#include "framework/kernels/onednn_plugin.h"

namespace penstock::kernels {

// The plugin's table, or null: then our plain kernels do the work. The first call opens it, says so
// in the log when it cannot be had, and makes its threads those of parallel::run(). The variable
// PENSTOCK_ONEDNN=off keeps it closed.
const PenstockOnednnPlugin* onednn();

// One line for `info`: "oneDNN 2.6.3, avx512_core_bf16" when it is open, else where it would be
// opened from. Opens nothing.
std::string onednn_status();

// Does the CPU have bf16 arithmetic that oneDNN uses? Opens the plugin.
bool cpu_bf16_usable();
// Throws DeviceError unless matrix products and convolutions of `dtype` are computed on this CPU at
// full speed: bf16 is refused where it would be emulated.
void require_cpu_arithmetic(DType dtype, const char* op);

// A problem of the library, found in its cache or made; empty where it has nothing optimised.
class OnednnProblem {
 public:
  OnednnProblem() = default;
  // The threads are filled in.
  explicit OnednnProblem(PenstockOnednnMatmul matmul);
  explicit OnednnProblem(PenstockOnednnConv conv);
  ~OnednnProblem();
  OnednnProblem(const OnednnProblem&) = delete;
  OnednnProblem& operator=(const OnednnProblem&) = delete;

  explicit operator bool() const { return problem_ != nullptr; }
  // Bytes of workspace that run() allocates, and the library's name of what it would run.
  i64 workspace() const { return i64(info_.workspace); }
  std::string name() const { return info_.name; }
  // Runs with a workspace of `device`'s regions; on meta only the workspace is allocated.
  void run(PenstockOnednnCall call, Device device) const;

 private:
  template <class Description>
  void open(int (*how)(const Description*, void**, PenstockOnednnInfo*, PenstockOnednnError*),
            Description& description);

  void* problem_ = nullptr;
  PenstockOnednnInfo info_{};
};

}  // namespace penstock::kernels
