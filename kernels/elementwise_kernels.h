// The functions that each CPU level implements for elementwise.h, quantized_page.h and
// calibrated_page.h.
#pragma once

#include "kernels/elementwise.h"

namespace smartkv::kernels {

// Least value, greatest value and sum of a vector.
struct Range {
  float low, high, sum;
};

// A line zero + scale * c that maps codes c to the values of a column. The code of x is (x - zero) / scale, clamped to
// [0, most] and rounded to the nearest even integer.
struct CodeLine {
  float scale, zero, most;  // If scale is 0, all codes are 0.
};

// How well the codes of a column fit: the squared error, and the sums that a regression of x on c needs.
struct CodeFit {
  float error, sum_c, sum_cc, sum_xc;
};

// The elementwise functions of one CPU level.
struct ElementwiseKernels {
  void (*rms_norm_row)(const float* x, int64_t n, const float* weight, float eps, KvType type, void* out);
  void (*rope)(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin);
  // The functions below take x: f32 [n], n a multiple of 16.
  Range (*range)(const float* x, int64_t n);
  CodeFit (*measure_codes)(const float* x, int64_t n, const CodeLine& line);
  void (*encode)(const float* x, int64_t n, const CodeLine& line, uint8_t* codes);
  // The same for codes of 1 to 4 bits that stand for kPositiveLevels[bits] and their negatives, times scale / 127
  // (calibrated_page.h). measure_levels() returns the squared error.
  float (*measure_levels)(const float* x, int64_t n, int bits, float scale);
  void (*encode_levels)(const float* x, int64_t n, int bits, float scale, uint8_t* codes);
};

extern const ElementwiseKernels kElementwiseScalar, kElementwiseAvx2, kElementwiseAvx512, kElementwiseAvx512Vnni;

}  // namespace smartkv::kernels
