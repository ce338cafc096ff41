#include "framework/tuner/probe.h"

#include <utility>

namespace penstock::tuner {

Probe::Probe(ProbeOptions options) : options_(std::move(options)) {}
const ProbeRequest& Probe::ask() const { return request_; }
void Probe::tell(const ProbeObservation&) { done_ = true; }
const ProbeResult& Probe::result() const { return result_; }
std::vector<Record> Probe::take_records() { return std::exchange(records_, {}); }
std::vector<i64> probe_grid(const ProbeOptions&) { return {1}; }
std::string explain(const ProbeResult&) { return {}; }
const char* name_of(ProbeKind) { return ""; }

}  // namespace penstock::tuner
