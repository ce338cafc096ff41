// Stands in for cuda.cpp in a build without a CUDA toolkit.
#include "framework/core/cuda.h"

namespace penstock::cuda {
namespace {

[[noreturn]] void none() {
  throw DeviceError("cuda: this build has no CUDA support; use device: cpu");
}

}  // namespace

bool built() {
  return false;
}
bool available() {
  return false;
}
std::string status() {
  return "not built with CUDA";
}
void require() {
  none();
}
const DeviceInfo& info() {
  none();
}
i64 free_memory() {
  none();
}
std::unique_ptr<Range> reserve_range() {
  none();
}
Stream compute_stream() {
  none();
}
Stream copy_stream() {
  none();
}
Event::Event(bool /*timing*/) {
  none();
}
Event::~Event() = default;
Event::Event(Event&& other) noexcept = default;
Event& Event::operator=(Event&& other) noexcept = default;
void Event::record(Stream /*stream*/) {
  none();
}
void Event::wait_on(Stream /*stream*/) const {
  none();
}
void Event::synchronize() const {
  none();
}
bool Event::done() const {
  none();
}
float Event::milliseconds_since(const Event& /*start*/) const {
  none();
}
void copy_async(void* /*to*/, const void* /*from*/, i64 /*bytes*/, Stream /*stream*/) {
  none();
}
void fill_async(void* /*to*/, int /*byte*/, i64 /*bytes*/, Stream /*stream*/) {
  none();
}
void synchronize(Stream /*stream*/) {
  none();
}
void report_pending_error(const char* /*op*/, const char* /*phase*/) {}
bool register_host(void* /*address*/, i64 /*bytes*/) {
  return false;
}
void unregister_host(void* /*address*/) {}
Graph::Graph() = default;
Graph::~Graph() = default;
Graph::Graph(Graph&& other) noexcept = default;
Graph& Graph::operator=(Graph&& other) noexcept = default;
void Graph::begin() {
  none();
}
void Graph::end() {
  none();
}
void Graph::abandon() noexcept {}
void Graph::launch(Stream /*stream*/) const {
  none();
}

}  // namespace penstock::cuda
