// What each CPU level implements of elementwise.h.
#pragma once

#include "kernels/elementwise.h"

namespace smartkv::kernels {

struct ElementwiseKernels {
  void (*rms_norm_row)(const float* x, int64_t n, const float* weight, float eps, KvType type, void* out);
  void (*rope)(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin);
};

extern const ElementwiseKernels kElementwiseScalar, kElementwiseAvx2, kElementwiseAvx512, kElementwiseAvx512Vnni;

}  // namespace smartkv::kernels
