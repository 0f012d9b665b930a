// The instruction set that the kernels use, chosen once at run time.
#pragma once

#include <cstdint>
#include <string_view>

namespace smartkv::kernels {

// Each level includes the instructions of the levels above it in this list.
enum class CpuLevel : uint8_t {
  kScalar,      // Portable C++ (SSE2 by the compiler).
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // VNNI, BF16
  kAmx,         // GFNI, and AMX for int8 and BF16, which the operating system must grant
};

// Returns the highest level that this CPU and operating system support.
CpuLevel detected_cpu_level();
// Returns the level in use. This is detected_cpu_level(), unless SMARTKV_CPU_LEVEL (scalar, avx2, avx512, avx512_vnni,
// amx) or set_cpu_level() chose a lower one. Throws std::runtime_error if the variable holds an unknown name or a level
// that the CPU lacks.
CpuLevel cpu_level();
// Sets the level, for tests. Throws std::runtime_error if the CPU lacks it.
void set_cpu_level(CpuLevel level);
// Returns the name of a level, as SMARTKV_CPU_LEVEL takes it.
std::string_view name(CpuLevel level);

}  // namespace smartkv::kernels
