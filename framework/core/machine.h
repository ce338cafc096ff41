// What this process may use of the machine: cores, memory, instruction set. Container limits count.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "framework/core/target.h"

namespace penstock::machine {

// Cores granted: min(affinity mask, ceil(cgroup quota / period)), at least 1. Read once.
int cores();
// Bytes this process may still take: min(cgroup limit - usage, MemAvailable). Read now.
i64 available_memory();
// Bytes this process may hold altogether: min(cgroup limit, MemTotal).
i64 total_memory();
// Bytes of the resident set now.
i64 resident_memory();

// The instruction-set level that CPU kernels are instantiated for.
enum class Isa { kBaseline = 1, kV3 = 3, kV4 = 4 };
// The highest level this CPU runs, or the lower one asked for by set_isa().
Isa isa();
// Lowers the level (tests, reproducing another machine's bits); above the CPU's it is an error.
void set_isa(Isa level);
const char* name_of(Isa level);

// "200000 100000" -> 2, "150000 100000" -> 2, "max 100000" -> none (cgroup v2 cpu.max).
std::optional<int> parse_cpu_max(std::string_view text);
// cgroup v1: quota -1 or unreadable -> none.
std::optional<int> parse_cfs_quota(std::string_view quota, std::string_view period);
// "max" -> none (cgroup v2 memory.max); absurdly large v1 values -> none.
std::optional<i64> parse_memory_limit(std::string_view text);

// The CPU's model name, for reports and cache keys.
std::string cpu_name();

}  // namespace penstock::machine
