// What each CPU level implements of all operations: the one table from which they take their functions.
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/cpu_level.h"
#include "kernels/elementwise_kernels.h"
#include "kernels/linear_kernels.h"

namespace smartkv::kernels {

struct CpuKernels {
  const AttentionKernels* attention;
  const ElementwiseKernels* elementwise;
  const LinearKernels* linear;
};

const CpuKernels& cpu_kernels(CpuLevel level);
const CpuKernels& cpu_kernels();  // of cpu_level()

}  // namespace smartkv::kernels
