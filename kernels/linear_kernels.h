// The products of linear.h per instruction set. Each table is defined in its own file under kernels/cpu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace smartkv::kernels {

// Everything a tile needs; the same for all tiles of one linear().
struct LinearCall {
  const std::byte* weights = nullptr;
  int64_t lane_group_bytes = 0;
  int64_t n = 0;  // out_features
  int64_t k = 0;
  LinearInput input;
  LinearOutput output;
  bool swiglu_bf16 = false;  // type of kSwiGlu's output
  // Integer types: the quantised x. A value is x_scale * q; x_sum is x_scale times the sum of the group's q, and times minus the
  // centre of centred weights. Of int6 the two halves of each group have sums of their own, times -32: [rows, K/16].
  const int8_t* x_int8 = nullptr;  // [rows, K]
  const float* x_scale = nullptr;  // [rows, K/32]
  const float* x_sum = nullptr;    // [rows, K/32]
  // kF32 and kBf16 at a level with LinearKernels::widen: x as f32.
  const float* x_f32 = nullptr;
  int64_t x_f32_stride = 0;
};

// Rows [row_begin, row_end) by lane groups [group_begin, group_end).
struct LinearTile {
  int64_t row_begin, row_end;
  int64_t group_begin, group_end;
};

// How well 16 lanes' lines (scale * q + minimum, q in [0, 15]) fit their weights at the nearest levels q: the squared
// error, and the sums over a group of 32 that a regression of w on q needs.
struct Int4Fit {
  float error[16], sum_q[16], sum_qq[16], sum_qw[16];
};

struct LinearKernels {
  using Product = void (*)(const LinearCall&, const LinearTile&);
  Product f32;
  Product bf16;
  Product int8[2];  // by Minimums
  Product int4[3];
  Product int6;
  // One row of bf16 x [k] to int8 by groups of 32: scale = max|x| / 127, q = x / scale rounded to nearest even.
  void (*quantize)(const uint16_t* x, int64_t k, int8_t* q, float* scale, float* sum);
  // Null, or how one row of bf16 x [k] becomes the f32 that the products read.
  void (*widen)(const uint16_t* x, int64_t k, float* out) = nullptr;
  // w [32][16]; scale, minimum and inverse = 1 / scale [16].
  void (*measure_int4)(const float* w, const float* scale, const float* minimum, const float* inverse, Int4Fit& fit);
};

extern const LinearKernels kLinearScalar;
extern const LinearKernels kLinearAvx2;
extern const LinearKernels kLinearAvx512;
extern const LinearKernels kLinearAvx512Vnni;
extern const LinearKernels kLinearAmx;

}  // namespace smartkv::kernels
