// C (+)= A B of bf16 on AMX tiles, or on vectors with the same bits. Included by files that are compiled for AMX.
// Everything has internal linkage.
//
// A step is a pair of A's columns and a row of B with pairs side by side. A tile has kTileSteps steps. B comes in
// groups of 16 columns.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx_tiles.h"

namespace smartkv::kernels {
namespace {

constexpr int64_t kTileSteps = 16;

struct TileOperands {
  const uint16_t* a;
  int64_t lda;
  const uint16_t* b;
  int64_t ldb;           // From one step to the next. All strides are in elements.
  int64_t group_stride;  // From one group of B to the next.
  int64_t tiles;
};

// Computes up to 16 rows by Groups groups. Tiles 0 to 3 hold the sums, 4 the rows, 5 to 7 parts of B in turn. ask(step)
// prefetches memory that is needed later.
template <int Groups, typename Ask>
void product_on_tiles(const TileOperands& in, float* c, int64_t ldc, bool accumulate, const Ask& ask) {
  if (accumulate) {
    _tile_loadd(0, c, ldc * 4);
    if constexpr (Groups > 1) _tile_loadd(1, c + 16, ldc * 4);
    if constexpr (Groups > 2) {
      _tile_loadd(2, c + 32, ldc * 4);
      _tile_loadd(3, c + 48, ldc * 4);
    }
  } else {
    _tile_zero(0);
    if constexpr (Groups > 1) _tile_zero(1);
    if constexpr (Groups > 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t t = 0; t < in.tiles; ++t) {
    for (int64_t step = t * kTileSteps; step < (t + 1) * kTileSteps; ++step) ask(step);
    const uint16_t* b = in.b + t * kTileSteps * in.ldb;
    _tile_loadd(4, in.a + 2 * kTileSteps * t, in.lda * 2);
    _tile_loadd(5, b, in.ldb * 2);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (Groups > 1) {
      _tile_loadd(6, b + in.group_stride, in.ldb * 2);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (Groups > 2) {
      _tile_loadd(7, b + 2 * in.group_stride, in.ldb * 2);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, b + 3 * in.group_stride, in.ldb * 2);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, c, ldc * 4);
  if constexpr (Groups > 1) _tile_stored(1, c + 16, ldc * 4);
  if constexpr (Groups > 2) {
    _tile_stored(2, c + 32, ldc * 4);
    _tile_stored(3, c + 48, ldc * 4);
  }
}

// Computes the tile product on vectors, as the manual defines it. The even and the odd columns of a tile are each
// summed in a chain of fused products. Both sums are added, and the result is added to C. Denormals count as zeros.
//
// With few rows this keeps up with the memory, which loads of tiles do not (0.77 of the rate with one row). REQUIRES:
// the caller holds a NoDenormals.
template <int Rows, int Groups, typename Ask>
[[gnu::noinline]] void product_on_vectors(const TileOperands& in, float* c, int64_t ldc, bool accumulate,
                                          const Ask& ask) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512 sum[Rows][Groups];
  for (int r = 0; r < Rows; ++r) {
    for (int g = 0; g < Groups; ++g)
      sum[r][g] = accumulate ? _mm512_loadu_ps(c + r * ldc + 16 * g) : _mm512_setzero_ps();
  }
  for (int64_t t = 0; t < in.tiles; ++t) {
    __m512 even[Rows][Groups], odd[Rows][Groups];
    for (int r = 0; r < Rows; ++r) {
      for (int g = 0; g < Groups; ++g) even[r][g] = odd[r][g] = _mm512_setzero_ps();
    }
    for (int64_t step = t * kTileSteps; step < (t + 1) * kTileSteps; ++step) {
      ask(step);
      __m512 x_even[Rows], x_odd[Rows];
      for (int r = 0; r < Rows; ++r) {
        uint32_t pair;
        std::memcpy(&pair, in.a + r * in.lda + 2 * step, sizeof pair);
        x_even[r] = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(pair << 16)));
        x_odd[r] = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(pair & 0xffff0000u)));
      }
      for (int g = 0; g < Groups; ++g) {
        const __m512i pairs = _mm512_loadu_si512(in.b + step * in.ldb + g * in.group_stride);
        const __m512 b_even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        const __m512 b_odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper));
        for (int r = 0; r < Rows; ++r) {
          even[r][g] = _mm512_fmadd_ps(x_even[r], b_even, even[r][g]);
          odd[r][g] = _mm512_fmadd_ps(x_odd[r], b_odd, odd[r][g]);
        }
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int g = 0; g < Groups; ++g) sum[r][g] = _mm512_add_ps(sum[r][g], _mm512_add_ps(even[r][g], odd[r][g]));
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int g = 0; g < Groups; ++g) _mm512_storeu_ps(c + r * ldc + 16 * g, sum[r][g]);
  }
}

}  // namespace
}  // namespace smartkv::kernels
