#include "framework/kernels/onednn.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"
#include "framework/kernels/library.h"

namespace penstock::kernels {
namespace {

constexpr const char* kFile = "libpenstock_onednn.so";

std::atomic<const PenstockOnednnPlugin*> g_open{nullptr};

// Sets a variable that GNU OpenMP reads when it is loaded, which happens inside the plugin's dlopen;
// what the user has set stays.
void offer_variable(const char* name, const char* value) { setenv(name, value, 0); }

const PenstockOnednnPlugin* open_onednn() {
  const char* off = std::getenv("PENSTOCK_ONEDNN");
  if (off != nullptr && std::string_view(off) == "off") {
    log::info("cpu: oneDNN is switched off by PENSTOCK_ONEDNN=off; plain kernels are used");
    return nullptr;
  }
  offer_variable("GOMP_SPINCOUNT", "20000");
  std::string why;
  void* library = open_plugin(kFile, why);
  if (library == nullptr) {
    log::warning("cpu: {} was not opened ({}); matrix products and convolutions use plain kernels, "
                 "many times slower",
                 kFile, why);
    return nullptr;
  }
  using Entry = const PenstockOnednnPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(symbol(library, "penstock_onednn_plugin"));
  const PenstockOnednnPlugin* table = entry != nullptr ? entry() : nullptr;
  if (table == nullptr || table->version != PENSTOCK_ONEDNN_PLUGIN_VERSION) {
    log::warning("cpu: {} belongs to another version of Penstock; plain kernels are used", kFile);
    return nullptr;
  }
#if !defined(__SANITIZE_THREAD__)
  // GNU OpenMP's barriers are invisible to the thread sanitizer, which would report every kernel.
  if (table->parallel != nullptr) {
    parallel::set_team(table->parallel);
  }
#endif
  log::debug("cpu: {}, {}", table->library(), table->isa());
  g_open.store(table, std::memory_order_release);
  return table;
}

}  // namespace

const PenstockOnednnPlugin* onednn() {
  static const PenstockOnednnPlugin* table = open_onednn();
  return table;
}

std::string onednn_status() {
  const PenstockOnednnPlugin* table = g_open.load(std::memory_order_acquire);
  if (table != nullptr) {
    return format("{}, {}", table->library(), table->isa());
  }
  const std::string path = plugin_path(kFile);
  return access(path.c_str(), R_OK) == 0 ? format("not opened yet ({})", path)
                                         : format("absent ({})", path);
}

bool cpu_bf16_usable() {
  const PenstockOnednnPlugin* table = onednn();
  return table != nullptr && table->usable(int32_t(DType::bf16)) != 0;
}

void require_cpu_arithmetic(DType dtype, const char* op) {
  if (dtype != DType::bf16 || cpu_bf16_usable()) {
    return;
  }
  const PenstockOnednnPlugin* table = onednn();
  throw DeviceError(format(
      "{}: bf16 on the CPU needs AVX512-BF16 and oneDNN; this CPU ({}) {}. Use f32 here; emulated "
      "bf16 would be slower than that",
      op, machine::cpu_name(),
      table != nullptr ? format("offers {}", table->isa()) : std::string("has no oneDNN opened")));
}

template <class Description>
void OnednnProblem::open(int (*how)(const Description*, void**, PenstockOnednnInfo*,
                                    PenstockOnednnError*),
                         Description& description) {
  description.threads = parallel::threads();
  PenstockOnednnError error{};
  const int code = how(&description, &problem_, &info_, &error);
  if (code == kPenstockOnednnUnsupported) {
    problem_ = nullptr;
    log::debug("cpu: oneDNN has nothing optimised for a problem: {}",
               static_cast<const char*>(error.text));
  } else if (code != 0) {
    throw DeviceError(format("cpu: oneDNN failed: {}", static_cast<const char*>(error.text)));
  }
}

OnednnProblem::OnednnProblem(PenstockOnednnMatmul matmul) {
  if (const PenstockOnednnPlugin* table = onednn()) {
    open(table->open_matmul, matmul);
  }
}

OnednnProblem::OnednnProblem(PenstockOnednnConv conv) {
  if (const PenstockOnednnPlugin* table = onednn()) {
    open(table->open_conv, conv);
  }
}

OnednnProblem::~OnednnProblem() {
  if (problem_ != nullptr) {
    onednn()->close(problem_);
  }
}

void OnednnProblem::run(PenstockOnednnCall call, Device device) const {
  const Tensor scratch =
      Tensor::empty({workspace()}, DType::u8, device, MemoryClass::kWorkspace);
  if (device.is_meta()) {
    return;
  }
  call.workspace = scratch.raw();
  PenstockOnednnError error{};
  if (onednn()->run(problem_, &call, &error) != 0) {
    throw DeviceError(format("cpu: oneDNN failed: {}", static_cast<const char*>(error.text)));
  }
}

}  // namespace penstock::kernels
