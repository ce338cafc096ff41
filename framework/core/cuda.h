// The CUDA runtime behind a header that needs no CUDA. Without a toolkit, cuda_stub.cpp stands in:
// built() is false and everything that needs a device throws DeviceError.
#pragma once

#include <memory>
#include <string>

#include "framework/core/check.h"

namespace penstock::cuda {

// Compiled with CUDA?
bool built();
// A driver and a device answer? Never throws; looks once.
bool available();
// "NVIDIA H200, driver 580.159" or why there is no device.
std::string status();
// Throws DeviceError with status() unless available().
void require();

struct DeviceInfo {
  std::string name;
  std::string uuid;
  std::string pci_bus_id;  // "0000:1b:00.0": NVML finds the device by it
  int capability = 0;      // 90 for compute capability 9.0
  int multiprocessors = 0;
  i64 l2_bytes = 0;
  i64 total_memory = 0;
  double peak_bytes_per_second = 0;  // 2 x memory clock x bus width
  int driver_version = 0;            // 13000 for CUDA 13.0
  int runtime_version = 0;
};
const DeviceInfo& info();
// What the driver says is free now, in bytes.
i64 free_memory();

// A reserved range of device addresses, backed by physical memory from its start.
class Range {
 public:
  Range() = default;
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  virtual ~Range() = default;
  virtual void* base() = 0;
  // Backs [from, to); both are multiples of 64 MiB. False with `why` when memory is short; nothing
  // has changed then and no error sticks to the context.
  virtual bool grow(i64 from, i64 to, std::string& why) = 0;
  // Gives [from, to) back; waits for the device first.
  virtual void shrink(i64 from, i64 to) = 0;
};
std::unique_ptr<Range> reserve_range();

// The two streams of the process: kernels and library calls go to `compute`, copies between host
// and device for the next step to `copy`. A Stream is a cudaStream_t.
using Stream = void*;
Stream compute_stream();
Stream copy_stream();

class Event {
 public:
  // `timing`: elapsed() may be asked for.
  explicit Event(bool timing = false);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream);
  // Makes later work of `stream` wait for the recorded point.
  void wait_on(Stream stream) const;
  void synchronize() const;
  // Has the recorded point passed?
  bool done() const;
  // Milliseconds from `start` to this; both recorded with timing and done.
  float milliseconds_since(const Event& start) const;
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
};

// Copies in any direction, in stream order; host memory must be pinned to be asynchronous.
void copy_async(void* to, const void* from, i64 bytes, Stream stream);
void fill_async(void* to, int byte, i64 bytes, Stream stream);
void synchronize(Stream stream);
// Throws DeviceError naming the op and phase if the device reports an error after waiting for it.
void report_pending_error(const char* op, const char* phase);

// Pins an existing mapping; false (never a throw) when the system refuses.
bool register_host(void* address, i64 bytes);
void unregister_host(void* address);

// A captured sequence of work on the compute stream.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Starts recording this thread's work on the compute stream (thread-local capture mode).
  void begin();
  // Ends recording and makes the graph launchable. Throws DeviceError with the reason on failure.
  void end();
  // Drops a recording after an exception; the stream is usable again.
  void abandon() noexcept;
  void launch(Stream stream) const;
  bool ready() const { return executable_ != nullptr; }
  i64 nodes() const { return nodes_; }

 private:
  void* executable_ = nullptr;
  i64 nodes_ = 0;
  bool capturing_ = false;
};

}  // namespace penstock::cuda
