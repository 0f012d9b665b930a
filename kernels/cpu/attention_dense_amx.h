// The products of dense pages in bf16 on AMX tiles: 16 rows of a page's pairs are a tile as they lie. Included by
// attention_dense.h.
#pragma once

#include <algorithm>

#include "kernels/cpu/amx_tiles.h"

namespace smartkv::kernels {
namespace {

// The tiles with which a block of query rows multiplies, dense pages and codes: 0 to 3 are sums, 4 holds rows, 5 to 7
// what they are multiplied with. Two planes of weights need twice their rows, up to 16; so dense products of few rows
// multiply as many more, of which nothing is used.
class BlockScope {
 public:
  explicit BlockScope(int64_t rows) : tiles_(shapes(static_cast<uint8_t>(std::min(2 * rows, kTileRows)))) {}

 private:
  static TileScope::Rows shapes(uint8_t n) { return {{n, n, n, n, n, 16, 16, 16}}; }
  TileScope tiles_;
};

constexpr int64_t kTileSteps = 16;

// Steps of bf16 that dense_product() wants for a row's sums to run alike in every block: whole tiles.
constexpr int64_t whole_steps(int64_t steps) { return (steps + kTileSteps - 1) / kTileSteps * kTileSteps; }

// C [16][16 Groups] (+)= A B over whole tiles; see tile().
template <int Groups>
void amx_tile(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, int64_t tiles, float* c, int64_t ldc,
              bool accumulate, const uint16_t* next) {
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
  for (int64_t t = 0; t < tiles; ++t) {
    if (next != nullptr) {
      for (int64_t line = t * kTileSteps; line < (t + 1) * kTileSteps; ++line) {
        for (int g = 0; g < Groups; ++g) Vec16::prefetch(next + line * ldb + 32 * g);
      }
    }
    const uint16_t* from = b + t * kTileSteps * ldb;
    _tile_loadd(4, a + 2 * kTileSteps * t, lda * 2);
    _tile_loadd(5, from, ldb * 2);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (Groups > 1) {
      _tile_loadd(6, from + 32, ldb * 2);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (Groups > 2) {
      _tile_loadd(7, from + 64, ldb * 2);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, from + 96, ldb * 2);
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

// C [rows][16 groups] (+)= A B for any number of column groups. Reads and writes A and C up to the next whole tile of
// rows. Steps past the last whole tile of B run on vectors.
template <typename T>
void dense_product(int64_t rows, int64_t groups, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c,
                   int64_t ldc, bool accumulate, const T* next) {
  if constexpr (std::is_same_v<T, float>) {
    product(rows, groups, a, lda, b, ldb, steps, c, ldc, accumulate, next);
  } else {
    const int64_t tiles = steps / kTileSteps, rest = steps % kTileSteps;
    for (int64_t row = 0; tiles > 0 && row < rows; row += kTileRows) {
      const T* const from = a + row * lda;
      const T* const ask = row == 0 ? next : nullptr;
      int64_t g = 0;
      const auto run = [&]<int Groups>(std::integral_constant<int, Groups>) {
        for (; g + Groups <= groups; g += Groups) {
          amx_tile<Groups>(from, lda, b + 32 * g, ldb, tiles, c + row * ldc + 16 * g, ldc, accumulate,
                           ask == nullptr ? nullptr : ask + 32 * g);
        }
      };
      run(std::integral_constant<int, 4>{});
      run(std::integral_constant<int, 2>{});
      run(std::integral_constant<int, 1>{});
    }
    if (rest > 0) {
      const int64_t done = tiles * kTileSteps;
      product(rows, groups, a + 2 * done, lda, b + done * ldb, ldb, rest, c, ldc, accumulate || tiles > 0,
              next == nullptr ? nullptr : next + done * ldb);
    }
  }
}

}  // namespace
}  // namespace smartkv::kernels
