#include "engine/system_resources.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

namespace smartkv {
namespace {

// The number after `key` in a file of "key value" lines; without a key, the file's first word. "max" is no number.
std::optional<int64_t> read_number(const char* path, const std::string& key = "") {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (!key.empty()) {
      if (word != key) continue;
      if (!(file >> word)) break;
    }
    try {
      return std::stoll(word);
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int64_t available_bytes() {
  const auto kib = read_number("/proc/meminfo", "MemAvailable:");
  if (!kib) throw std::runtime_error("/proc/meminfo: expected a line MemAvailable, found none");
  int64_t bytes = *kib * 1024;
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto current = read_number("/sys/fs/cgroup/memory.current");
  if (limit && current) {
    const int64_t reclaimable = read_number("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
    bytes = std::min(bytes, *limit - *current + reclaimable);
  }
  return std::max<int64_t>(0, bytes);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace smartkv
