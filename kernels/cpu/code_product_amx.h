// Products of weights and codes on AMX tiles. Included by attention_codes.h after vec16_codes_avx512.h, which splits
// weights into two planes of int8. 8 rows of weights make a tile of 16 x 64 columns. The bytes of 16 rows, 16 quads
// each, are the other operand as they lie in memory. REQUIRES: a BlockScope has configured the tiles.
#pragma once

#include <algorithm>

#include "kernels/cpu/amx_tiles.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kPlanedRows = kTileRows / 2;  // Rows of weights in a tile, two planes each.

// Computes C [rows][extent] = (or +=) offsets + x codes. Reads the weights of rows up to the next multiple of 8.
inline void code_product(const CodeRows& x, const CodePart& part, int64_t extent, float* c, int64_t ldc,
                         bool accumulate) {
  alignas(64) int32_t sums[2 * kPlanedRows][64];
  const int64_t stride = 4 * extent;  // Bytes from one quad to the next.
  for (int64_t block = 0; block < extent / 64; ++block) {
    for (int64_t row = 0; row < x.rows; row += kPlanedRows) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      const uint8_t* weights = x.weights + row * 2 * x.n;
      const uint8_t* bytes = part.bytes + 256 * block;
      for (int64_t column = 0; column < part.columns; column += 64, weights += 64, bytes += 16 * stride) {
        _tile_loadd(4, weights, x.n);
        _tile_loadd(5, bytes, stride);
        _tile_dpbsud(0, 4, 5);
        _tile_loadd(6, bytes + 64, stride);
        _tile_dpbsud(1, 4, 6);
        _tile_loadd(7, bytes + 128, stride);
        _tile_dpbsud(2, 4, 7);
        _tile_loadd(5, bytes + 192, stride);
        _tile_dpbsud(3, 4, 5);
      }
      _tile_stored(0, &sums[0][0], sizeof sums[0]);
      _tile_stored(1, &sums[0][16], sizeof sums[0]);
      _tile_stored(2, &sums[0][32], sizeof sums[0]);
      _tile_stored(3, &sums[0][48], sizeof sums[0]);
      for (int64_t r = row; r < std::min(x.rows, row + kPlanedRows); ++r) {
        const Vec16 step = Vec16::set1(x.steps[r]), offset = Vec16::set1(x.offsets[r]);
        const int32_t *high = sums[2 * (r - row)], *low = sums[2 * (r - row) + 1];
        for (int64_t i = 0; i < 64; i += 16) {
          float* to = c + r * ldc + 64 * block + i;
          const Vec16 sum = whole_sums(_mm512_load_si512(high + i), _mm512_load_si512(low + i));
          Vec16::fma(sum, step, accumulate ? Vec16::load(to) + offset : offset).store(to);
        }
      }
    }
  }
}

}  // namespace
}  // namespace smartkv::kernels
