// What each CPU level implements of elementwise.h.
#pragma once

#include "kernels/elementwise.h"

namespace smartkv::kernels {

struct Range {
  float low, high, sum;  // of all values
};

// The codes of a column under a line zero + scale c: c is (x - zero) / scale, brought into [0, most] and rounded to the
// nearest even.
struct CodeLine {
  float scale, zero, most;  // a scale of 0: all codes are 0
};

// How well they fit: the squared error, and the sums that a regression of x on c needs.
struct CodeFit {
  float error, sum_c, sum_cc, sum_xc;
};

struct ElementwiseKernels {
  void (*rms_norm_row)(const float* x, int64_t n, const float* weight, float eps, KvType type, void* out);
  void (*rope)(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin);
  // x [n], n a multiple of 16.
  Range (*range)(const float* x, int64_t n);
  CodeFit (*measure_codes)(const float* x, int64_t n, const CodeLine& line);
  void (*encode)(const float* x, int64_t n, const CodeLine& line, uint8_t* codes);
};

extern const ElementwiseKernels kElementwiseScalar, kElementwiseAvx2, kElementwiseAvx512, kElementwiseAvx512Vnni;

}  // namespace smartkv::kernels
