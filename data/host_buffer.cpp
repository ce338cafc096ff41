#include "data/host_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "framework/core/check.h"
#include "framework/core/cuda.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/core/parallel.h"

namespace penstock::data {
namespace {

constexpr i64 kHugePage = i64{2} << 20;

}  // namespace

HostBuffer::HostBuffer(i64 bytes, bool pin) {
  bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  // Pages are only taken when they are touched, so a ring that is larger than memory must be
  // refused here rather than by the system's killer later.
  if (bytes_ > machine::available_memory()) {
    throw ConfigError(format("loader.max_bytes: the ring needs {} and {} are free; lower it",
                             bytes_text(double(bytes_)),
                             bytes_text(double(machine::available_memory()))));
  }
  void* p = mmap(nullptr, std::size_t(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0);
  if (p == MAP_FAILED) {
    throw ConfigError(format("loader.max_bytes: no {} for the ring: {}; lower it",
                             bytes_text(double(bytes_)), std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(p);
  madvise(p, std::size_t(bytes_), MADV_HUGEPAGE);
  if (pin) {
    // Touched first, by all threads: registering untouched pages takes them one by one.
    parallel::run(bytes_ / 4096, 512, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        data_[i * 4096] = std::byte{0};
      }
    });
    pinned_ = cuda::register_host(p, bytes_);
    if (!pinned_) {
      log::warn_once(
          "pinned ring",
          "loader: the system does not let the ring be pinned (see ulimit -l); copies to "
          "the GPU are slower");
    }
  }
}

HostBuffer::~HostBuffer() {
  if (pinned_) {
    cuda::unregister_host(data_);
  }
  munmap(data_, std::size_t(bytes_));
}

}  // namespace penstock::data
