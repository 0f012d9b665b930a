// The instruction set that the kernels use, chosen once at run time.
#pragma once

#include <cstdint>
#include <string_view>

namespace smartkv::kernels {

enum class CpuLevel : uint8_t {
  kScalar,      // portable C++ (SSE2 by the compiler)
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // and VNNI, BF16
  kAmx,         // and GFNI, and AMX for int8 and BF16, which the system must grant
};

CpuLevel detected_cpu_level();  // the highest that this CPU and system support
// detected_cpu_level(), unless SMARTKV_CPU_LEVEL (scalar, avx2, avx512, avx512_vnni, amx) or set_cpu_level() says lower.
// An unknown name, or a level that the CPU lacks, throws std::runtime_error.
CpuLevel cpu_level();
void set_cpu_level(CpuLevel level);  // for tests
std::string_view name(CpuLevel level);

}  // namespace smartkv::kernels
