// The products of linear.h for each CPU level. Each table is defined in a file of its own under kernels/cpu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace smartkv::kernels {

// Arguments of all tiles of one linear() call.
struct LinearCall {
  const std::byte* weights = nullptr;
  int64_t lane_group_bytes = 0;
  int64_t n = 0;  // out_features
  int64_t k = 0;
  LinearInput input;
  LinearOutput output;
  const float* row_factors = nullptr;  // [N] or null: applied to y before the bias.
  bool gated_bf16 = false;             // Whether gated epilogues write bf16 rather than f32.
  // The quantized x, for integer weights. A value is x_scale * q. x_sum is x_scale times the sum of the group's q; for
  // weights without minimums it is also multiplied by minus the centre. If halves of a group have their own scales,
  // there is one sum for each: [rows, K/16].
  const int8_t* x_int8 = nullptr;  // [rows, K]
  const float* x_scale = nullptr;  // [rows, K/32]
  const float* x_sum = nullptr;    // [rows, K/32]
  // x as f32, for kF32 weights, and for kBf16 weights at a level with LinearKernels::widen.
  const float* x_f32 = nullptr;
  int64_t x_f32_stride = 0;
};

// A part of a product: rows [row_begin, row_end) by lane groups [group_begin, group_end).
struct LinearTile {
  int64_t row_begin, row_end;
  int64_t group_begin, group_end;
};

// How well lines (scale * q + minimum, q in [0, 15]) of 16 lanes fit the lanes' weights at the nearest levels q: the
// squared error, and the sums over a group of 32 that a regression of w on q needs.
struct Int4Fit {
  float error[16], sum_q[16], sum_qq[16], sum_qw[16];
};

// The product functions of one CPU level.
struct LinearKernels {
  using Product = void (*)(const LinearCall&, const LinearTile&);
  Product f32;
  Product bf16;
  Product integers[kWeightTypes][4];  // Indexed by WeightType and Minimums. Null where no such layout exists.
  // Quantizes one row of bf16 x [k] to int8 by groups of 32: scale = max|x| / 127, q = x / scale rounded to nearest
  // even, sum = scale times the sum of q.
  void (*quantize)(const uint16_t* x, int64_t k, int8_t* q, float* scale, float* sum);
  // Converts one row of bf16 x [k] to the f32 that the products read. Null if they read bf16.
  void (*widen)(const uint16_t* x, int64_t k, float* out) = nullptr;
  // Measures the fit of w [32][16]. scale, minimum and inverse = 1 / scale: [16].
  void (*measure_int4)(const float* w, const float* scale, const float* minimum, const float* inverse, Int4Fit& fit);
};

extern const LinearKernels kLinearScalar, kLinearAvx2, kLinearAvx512, kLinearAvx512Vnni;
extern const LinearKernels::Product kBf16OnTiles;  // of AMX

}  // namespace smartkv::kernels
