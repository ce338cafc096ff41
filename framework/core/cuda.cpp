#include "framework/core/cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>
#include <vector>

namespace penstock::cuda {
namespace {

[[noreturn]] void raise(cudaError_t code, const char* what) {
  // Clear it: a failure that was reported once must not be blamed on the next call.
  (void)cudaGetLastError();
  throw DeviceError(format("cuda: {} failed: {} ({}); the cause may be an earlier kernel, set "
                           "debug.sync: true to have the op named",
                           what, cudaGetErrorName(code), cudaGetErrorString(code)));
}

void call(cudaError_t code, const char* what) {
  if (code != cudaSuccess) [[unlikely]] {
    raise(code, what);
  }
}

// The virtual-memory calls of the driver, looked up at run time: linking libcuda would keep the
// program from starting without a driver.
struct Driver {
  decltype(&cuMemAddressReserve) address_reserve = nullptr;
  decltype(&cuMemAddressFree) address_free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;

  static Driver load() {
    Driver d;
    const auto find = [](const char* name, auto& function) {
      void* address = nullptr;
      cudaDriverEntryPointQueryResult result{};
      const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &address, 12000,
                                                                cudaEnableDefault, &result);
      check(code == cudaSuccess && result == cudaDriverEntryPointSuccess,
            "cuda: the driver has no {}", name);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
    find("cuMemAddressReserve", d.address_reserve);
    find("cuMemAddressFree", d.address_free);
    find("cuMemCreate", d.create);
    find("cuMemRelease", d.release);
    find("cuMemMap", d.map);
    find("cuMemUnmap", d.unmap);
    find("cuMemSetAccess", d.set_access);
    return d;
  }
};

const Driver& driver() {
  static const Driver d = Driver::load();
  return d;
}

struct State {
  bool usable = false;
  std::string status;
  DeviceInfo info;

  State() {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
      (void)cudaGetLastError();
      status = code == cudaSuccess ? "no CUDA device" : cudaGetErrorString(code);
      return;
    }
    cudaDeviceProp p{};
    if (cudaSetDevice(0) != cudaSuccess || cudaGetDeviceProperties(&p, 0) != cudaSuccess) {
      status = cudaGetErrorString(cudaGetLastError());
      return;
    }
    info.name = p.name;
    info.capability = p.major * 10 + p.minor;
    info.multiprocessors = p.multiProcessorCount;
    info.l2_bytes = p.l2CacheSize;
    info.total_memory = i64(p.totalGlobalMem);
    std::array<char, 32> bus{};
    if (cudaDeviceGetPCIBusId(bus.data(), int(bus.size()), 0) == cudaSuccess) {
      info.pci_bus_id = bus.data();
    }
    for (std::size_t i = 0; i < 16; ++i) {
      std::array<char, 3> hex{};
      std::snprintf(hex.data(), hex.size(), "%02x", unsigned(std::uint8_t(p.uuid.bytes[i])));
      info.uuid += hex.data();
    }
    int clock_khz = 0;
    int width = 0;
    (void)cudaDeviceGetAttribute(&clock_khz, cudaDevAttrMemoryClockRate, 0);
    (void)cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, 0);
    info.peak_bytes_per_second = 2.0 * clock_khz * 1e3 * width / 8;
    (void)cudaDriverGetVersion(&info.driver_version);
    (void)cudaRuntimeGetVersion(&info.runtime_version);
    usable = true;
    status = info.name;
  }
};

const State& state() {
  static const State s;
  return s;
}

CUmemAllocationProp allocation_properties() {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = 0;
  return p;
}

class DriverRange : public Range {
 public:
  DriverRange() {
    size_ = (state().info.total_memory * 2 + kChunk - 1) / kChunk * kChunk;
    const CUresult code = driver().address_reserve(&base_, std::size_t(size_), kChunk, 0, 0);
    if (code != CUDA_SUCCESS) {
      throw DeviceError(format("cuda: reserving {} of addresses failed with code {}",
                               bytes_text(double(size_)), int(code)));
    }
  }
  ~DriverRange() override { driver().address_free(base_, std::size_t(size_)); }

  void* base() override { return reinterpret_cast<void*>(base_); }

  bool grow(i64 from, i64 to, std::string& why) override {
    // One handle a growth: cheap at any size, and shrinking goes back growth by growth.
    const CUmemAllocationProp properties = allocation_properties();
    CUmemGenericAllocationHandle handle{};
    const auto bytes = std::size_t(to - from);
    CUresult code = to > size_ ? CUDA_ERROR_OUT_OF_MEMORY
                               : driver().create(&handle, bytes, &properties, 0);
    if (code != CUDA_SUCCESS) {
      why = format("the driver has {} free", bytes_text(double(free_memory())));
      return false;
    }
    code = driver().map(base_ + CUdeviceptr(from), bytes, 0, handle, 0);
    if (code == CUDA_SUCCESS) {
      CUmemAccessDesc access{};
      access.location = properties.location;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      code = driver().set_access(base_ + CUdeviceptr(from), bytes, &access, 1);
      if (code != CUDA_SUCCESS) {
        driver().unmap(base_ + CUdeviceptr(from), bytes);
      }
    }
    // The mapping keeps the memory; the handle is not needed any more.
    driver().release(handle);
    if (code != CUDA_SUCCESS) {
      why = format("mapping device memory failed with code {}", int(code));
      return false;
    }
    pieces_.emplace_back(from, to);
    return true;
  }

  void shrink(i64 from, i64 to) override {
    (void)cudaDeviceSynchronize();
    // Whole growths only: what cannot be unmapped without touching live memory stays.
    while (!pieces_.empty() && pieces_.back().second == to && pieces_.back().first >= from) {
      const auto [begin, end] = pieces_.back();
      driver().unmap(base_ + CUdeviceptr(begin), std::size_t(end - begin));
      pieces_.pop_back();
      to = begin;
    }
  }

 private:
  static constexpr i64 kChunk = i64(64) << 20;
  CUdeviceptr base_ = 0;
  i64 size_ = 0;
  std::vector<std::pair<i64, i64>> pieces_;
};

cudaStream_t stream_of(Stream s) { return static_cast<cudaStream_t>(s); }

Stream make_stream(int priority) {
  require();
  cudaStream_t s = nullptr;
  call(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, priority), "creating a stream");
  return s;
}

}  // namespace

bool built() { return true; }
bool available() { return state().usable; }
std::string status() { return state().status; }
void require() {
  if (!available()) {
    throw DeviceError(format("cuda: {}; use device: cpu", status()));
  }
}
const DeviceInfo& info() {
  require();
  return state().info;
}

i64 free_memory() {
  require();
  std::size_t free = 0;
  std::size_t total = 0;
  call(cudaMemGetInfo(&free, &total), "asking for free memory");
  return i64(free);
}

std::unique_ptr<Range> reserve_range() {
  require();
  call(cudaFree(nullptr), "creating the context");
  return std::make_unique<DriverRange>();
}

Stream compute_stream() {
  static const Stream s = make_stream(0);
  return s;
}
Stream copy_stream() {
  static const Stream s = make_stream(0);
  return s;
}

Event::Event(bool timing) {
  cudaEvent_t e = nullptr;
  call(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming),
       "creating an event");
  handle_ = e;
}
Event::~Event() {
  if (handle_ != nullptr) {
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
  }
}
Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}
void Event::record(Stream stream) {
  call(cudaEventRecord(static_cast<cudaEvent_t>(handle_), stream_of(stream)), "recording an event");
}
void Event::wait_on(Stream stream) const {
  call(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(handle_), 0),
       "waiting on an event");
}
void Event::synchronize() const {
  call(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)), "waiting for an event");
}
bool Event::done() const {
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  call(code, "querying an event");
  return true;
}
float Event::milliseconds_since(const Event& start) const {
  float ms = 0;
  call(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(start.handle_),
                            static_cast<cudaEvent_t>(handle_)),
       "reading event times");
  return ms;
}

void copy_async(void* to, const void* from, i64 bytes, Stream stream) {
  if (bytes > 0) {
    call(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDefault, stream_of(stream)),
         "a copy");
  }
}
void fill_async(void* to, int byte, i64 bytes, Stream stream) {
  if (bytes > 0) {
    call(cudaMemsetAsync(to, byte, std::size_t(bytes), stream_of(stream)), "a fill");
  }
}
void synchronize(Stream stream) {
  call(cudaStreamSynchronize(stream_of(stream)), "waiting for the device");
}

void report_pending_error(const char* op, const char* phase) {
  if (!available()) {
    return;
  }
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_of(compute_stream()), &status) != cudaSuccess ||
      status != cudaStreamCaptureStatusNone) {
    return;
  }
  cudaError_t code = cudaStreamSynchronize(stream_of(compute_stream()));
  if (code == cudaSuccess) {
    code = cudaGetLastError();
  }
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    throw DeviceError(format("cuda: '{}' ({}) failed on the device: {} ({})", op, phase,
                             cudaGetErrorName(code), cudaGetErrorString(code)));
  }
}

bool register_host(void* address, i64 bytes) {
  if (!available()) {
    return false;
  }
  const cudaError_t code = cudaHostRegister(address, std::size_t(bytes), cudaHostRegisterDefault);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
  }
  return code == cudaSuccess;
}
void unregister_host(void* address) { (void)cudaHostUnregister(address); }

Graph::Graph() = default;
Graph::~Graph() {
  abandon();
  if (executable_ != nullptr) {
    (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  }
}
Graph::Graph(Graph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)),
      nodes_(other.nodes_),
      capturing_(std::exchange(other.capturing_, false)) {}
Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  std::swap(nodes_, other.nodes_);
  std::swap(capturing_, other.capturing_);
  return *this;
}

void Graph::begin() {
  call(cudaStreamBeginCapture(stream_of(compute_stream()), cudaStreamCaptureModeThreadLocal),
       "starting a capture");
  capturing_ = true;
}

void Graph::end() {
  cudaGraph_t graph = nullptr;
  capturing_ = false;
  call(cudaStreamEndCapture(stream_of(compute_stream()), &graph), "ending a capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  std::size_t count = 0;
  (void)cudaGraphGetNodes(graph, nullptr, &count);
  (void)cudaGraphDestroy(graph);
  call(code, "instantiating a graph");
  if (executable_ != nullptr) {
    (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  }
  executable_ = executable;
  nodes_ = i64(count);
}

void Graph::abandon() noexcept {
  if (capturing_) {
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream_of(compute_stream()), &graph);
    if (graph != nullptr) {
      (void)cudaGraphDestroy(graph);
    }
    (void)cudaGetLastError();
  }
}

void Graph::launch(Stream stream) const {
  call(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_), stream_of(stream)),
       "launching a graph");
}

}  // namespace penstock::cuda
