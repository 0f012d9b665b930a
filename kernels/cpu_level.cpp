#include "kernels/cpu_level.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace smartkv::kernels {
namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvx512, CpuLevel::kAvx512Vnni};

CpuLevel checked(CpuLevel level) {
  if (level > detected_cpu_level()) {
    throw std::runtime_error("CPU level " + std::string(name(level)) + " is not available: this CPU has at most " +
                             std::string(name(detected_cpu_level())));
  }
  return level;
}

CpuLevel initial_level() {
  const char* wanted = std::getenv("SMARTKV_CPU_LEVEL");
  if (wanted == nullptr || *wanted == '\0') return detected_cpu_level();
  for (CpuLevel level : kLevels) {
    if (name(level) == wanted) return checked(level);
  }
  throw std::runtime_error("SMARTKV_CPU_LEVEL: expected scalar, avx2, avx512 or avx512_vnni, found \"" +
                           std::string(wanted) + "\"");
}

std::atomic<CpuLevel>& current() {
  static std::atomic<CpuLevel> level{initial_level()};
  return level;
}

}  // namespace

CpuLevel detected_cpu_level() {
  // __builtin_cpu_supports also asks whether the operating system saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!avx2) return CpuLevel::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return CpuLevel::kAvx2;
  const bool vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  return vnni ? CpuLevel::kAvx512Vnni : CpuLevel::kAvx512;
}

CpuLevel cpu_level() { return current().load(std::memory_order_relaxed); }

void set_cpu_level(CpuLevel level) { current().store(checked(level), std::memory_order_relaxed); }

std::string_view name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar: return "scalar";
    case CpuLevel::kAvx2: return "avx2";
    case CpuLevel::kAvx512: return "avx512";
    case CpuLevel::kAvx512Vnni: return "avx512_vnni";
  }
  return "unknown";
}

}  // namespace smartkv::kernels
