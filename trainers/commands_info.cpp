// info, config, replay: what needs no data set.
#include <unistd.h>

#include <iostream>

#include "framework/core/cuda.h"
#include "framework/core/log.h"
#include "framework/core/machine.h"
#include "framework/io/files.h"
#include "framework/io/json.h"
#include "framework/kernels/library.h"
#include "framework/kernels/onednn.h"
#include "framework/tuner/decisions.h"
#include "framework/tuner/replay.h"
#include "trainers/commands.h"
#include "trainers/device.h"
#include "trainers/version.h"

namespace penstock::trainers {

ExitCode run_config(const Arguments& /*arguments*/) {
  std::cout << io::config_reference();
  return ExitCode::kDone;
}

ExitCode run_info(const Arguments& a) {
  io::Json j = io::Json::object();
  j.set("version", kVersion);
  j.set("cpu", machine::cpu_name()).set("cores", machine::cores()).set("isa", machine::name_of(machine::isa()));
  j.set("memory_available", machine::available_memory()).set("memory_total", machine::total_memory());
  j.set("cuda", cuda::status());
  j.set("onednn", kernels::onednn_status());
  if (cuda::available()) {
    const cuda::DeviceInfo& d = cuda::info();
    j.set("gpu", io::Json::object()
                     .set("name", d.name)
                     .set("compute_capability", double(d.capability) / 10)
                     .set("multiprocessors", d.multiprocessors)
                     .set("memory_total", d.total_memory)
                     .set("memory_free", cuda::free_memory())
                     .set("peak_bytes_per_second", d.peak_bytes_per_second)
                     .set("pci_bus_id", d.pci_bus_id));
  }
  if (a.measure) {
    const auto ceilings = [&](Device device) {
      const measure::Ceilings c = device_ceilings(device, machine::cores());
      io::Json one = io::Json::object();
      one.set("bytes_per_second", c.bytes_per_second);
      for (std::size_t p = 0; p < measure::kPrecisions; ++p) {
        one.set(std::string("flops_") + measure::name_of(measure::Precision(p)), c.flops[p]);
      }
      return one.set("source", c.source).set("date", c.date);
    };
    j.set("ceilings_cpu", ceilings(kCpu));
    if (cuda::available()) {
      j.set("ceilings_gpu", ceilings(kCuda));
      auto meter = make_meter(kCuda, nullptr);
      meter->set_live(true);
      meter->start();
      usleep(600'000);
      j.set("counter_source", measure::name_of(meter->source())).set("counter_reason", meter->reason());
      meter->stop();
    }
  }
  if (a.json) {
    std::cout << j.dump(true) << "\n";
    return ExitCode::kDone;
  }
  for (const auto& [key, value] : *j.members()) {
    if (const auto* inner = value.members()) {
      std::cout << key << "\n";
      for (const auto& [k, v] : *inner) {
        std::cout << "  " << k << "  " << v.text().value_or(v.dump()) << "\n";
      }
    } else {
      std::cout << key << "  " << value.text().value_or(value.dump()) << "\n";
    }
  }
  return ExitCode::kDone;
}

ExitCode run_replay(const Arguments& a) {
  const std::string& path = a.runs.front();
  const std::string text = io::read_text(path, i64{256} << 20);
  const tuner::ReplayResult result = tuner::replay(tuner::parse_log(text, path));
  std::cout << tuner::to_string(result) << "\n";
  return result.same ? ExitCode::kDone : ExitCode::kInternal;
}

}  // namespace penstock::trainers
