#include "kernels/cpu_kernels.h"

#include <iterator>

namespace smartkv::kernels {
namespace {

// Computed here, because code of the file for AMX must not run on other CPUs, not even at the start.
const LinearKernels kLinearAmx = [] {
  LinearKernels kernels = kLinearAvx512Vnni;
  kernels.bf16 = kBf16OnTiles;
  return kernels;
}();

// In the order of CpuLevel. AMX uses the functions of the level below where it has no better instruction.
constexpr CpuKernels kTable[] = {
    {&kAttentionScalar, &kElementwiseScalar, &kLinearScalar},
    {&kAttentionAvx2, &kElementwiseAvx2, &kLinearAvx2},
    {&kAttentionAvx512, &kElementwiseAvx512, &kLinearAvx512},
    {&kAttentionAvx512Vnni, &kElementwiseAvx512Vnni, &kLinearAvx512Vnni},
    {&kAttentionAmx, &kElementwiseAvx512Vnni, &kLinearAmx},
};
static_assert(std::size(kTable) == static_cast<size_t>(CpuLevel::kAmx) + 1);

}  // namespace

const CpuKernels& cpu_kernels(CpuLevel level) { return kTable[static_cast<size_t>(level)]; }

const CpuKernels& cpu_kernels() { return cpu_kernels(cpu_level()); }

}  // namespace smartkv::kernels
