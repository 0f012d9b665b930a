// The one table of what each CPU level implements. All operations take their functions from it.
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/cpu_level.h"
#include "kernels/elementwise_kernels.h"
#include "kernels/linear_kernels.h"

namespace smartkv::kernels {

// The functions of one CPU level.
struct CpuKernels {
  const AttentionKernels* attention;
  const ElementwiseKernels* elementwise;
  const LinearKernels* linear;
};

const CpuKernels& cpu_kernels(CpuLevel level);
const CpuKernels& cpu_kernels();  // Returns the kernels of cpu_level().

}  // namespace smartkv::kernels
