#include "kernels/cpu_level.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

namespace smartkv::kernels {
namespace {

constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "avx512_vnni", "amx"};  // in the order of CpuLevel

// Asks Linux for the use of AMX's large registers (ARCH_REQ_XCOMP_PERM for XFEATURE_XTILEDATA), which it denies to a
// process that has not asked. Returns whether it is granted.
bool amx_granted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuLevel detect() {
  // __builtin_cpu_supports also checks that the operating system saves the wide registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!avx2) return CpuLevel::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return CpuLevel::kAvx2;
  const bool vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  if (!vnni) return CpuLevel::kAvx512;
  const bool amx = __builtin_cpu_supports("gfni") && __builtin_cpu_supports("amx-tile") &&
                   __builtin_cpu_supports("amx-int8") && __builtin_cpu_supports("amx-bf16") && amx_granted();
  return amx ? CpuLevel::kAmx : CpuLevel::kAvx512Vnni;
}

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
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == wanted) return checked(static_cast<CpuLevel>(i));
  }
  throw std::runtime_error("SMARTKV_CPU_LEVEL: expected scalar, avx2, avx512, avx512_vnni or amx, found \"" +
                           std::string(wanted) + "\"");
}

std::atomic<CpuLevel>& current() {
  static std::atomic<CpuLevel> level{initial_level()};
  return level;
}

}  // namespace

CpuLevel detected_cpu_level() {
  static const CpuLevel level = detect();
  return level;
}

CpuLevel cpu_level() { return current().load(std::memory_order_relaxed); }

void set_cpu_level(CpuLevel level) { current().store(checked(level), std::memory_order_relaxed); }

std::string_view name(CpuLevel level) { return kNames[static_cast<size_t>(level)]; }

}  // namespace smartkv::kernels
