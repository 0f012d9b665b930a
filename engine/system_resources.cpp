#include "engine/system_resources.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

#include "engine/control_groups.h"

namespace smartkv {
namespace {

// Returns the value of the line "MemAvailable: N kB" in /proc/meminfo, in KiB. nullopt if there is no such line.
std::optional<int64_t> available_kib() {
  std::ifstream file("/proc/meminfo");
  int64_t kib = 0;
  for (std::string word; file >> word;) {
    if (word == "MemAvailable:" && file >> kib) return kib;
  }
  return std::nullopt;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int allowed = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const double quota = std::ceil(control_group_limits().cpus);
  return std::max(1, quota < allowed ? static_cast<int>(quota) : allowed);
}

int64_t available_bytes() {
  const auto kib = available_kib();
  if (!kib) throw std::runtime_error("/proc/meminfo: expected a line MemAvailable, found none");
  return std::max<int64_t>(0, std::min(*kib * 1024, control_group_limits().free_bytes));
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace smartkv
