// Products of dense bf16 pages on AMX tiles. 16 rows of a page's pairs are a tile as they lie in memory. Included by
// attention_dense.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/tile_product.h"

namespace smartkv::kernels {
namespace {

// Configures the tiles that a block of query rows multiplies with, for dense pages and for codes. Tiles 0 to 3 hold
// sums, 4 holds rows, and 5 to 7 hold the other operand. Two planes of weights need twice as many rows, up to 16. So
// dense products of few rows multiply twice as many rows, and do not use the additional results.
class BlockScope {
 public:
  explicit BlockScope(int64_t rows) : tiles_(shapes(static_cast<uint8_t>(std::min(2 * rows, kTileRows)))) {}

 private:
  static TileScope::Rows shapes(uint8_t n) { return {{n, n, n, n, n, 16, 16, 16}}; }
  TileScope tiles_;
};

// Returns how many steps of bf16, at least `steps`, dense_product() needs to sum a row in the same way in every block:
// whole tiles.
constexpr int64_t whole_steps(int64_t steps) { return (steps + kTileSteps - 1) / kTileSteps * kTileSteps; }

// Returns a function that prefetches a step's lines of groups [g, g + Groups) of `next`, if there is one.
template <int Groups>
auto ask_for(const uint16_t* next, int64_t ldb, int64_t g) {
  return [=](int64_t step) {
    if (next == nullptr) return;
    for (int i = 0; i < Groups; ++i) Vec16::prefetch(next + step * ldb + 32 * (g + i));
  };
}

// Multiplies whole tiles of steps. Reads A, and reads and writes C, up to the next whole tile of rows.
inline void on_tiles(int64_t rows, int64_t groups, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                     int64_t tiles, float* c, int64_t ldc, bool accumulate, const uint16_t* next) {
  for (int64_t row = 0; row < rows; row += kTileRows) {
    for_each_groups<4>(groups, [&](auto width, int64_t g) {
      product_on_tiles<width>({a + row * lda, lda, b + 32 * g, ldb, 32, tiles}, c + row * ldc + 16 * g, ldc, accumulate,
                              ask_for<width>(row == 0 ? next : nullptr, ldb, g));
    });
  }
}

template <int Rows>
void on_vectors(int64_t groups, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, int64_t tiles, float* c,
                int64_t ldc, bool accumulate, const uint16_t* next) {
  for_each_groups<2>(groups, [&](auto width, int64_t g) {
    product_on_vectors<Rows, width>({a, lda, b + 32 * g, ldb, 32, tiles}, c + 16 * g, ldc, accumulate,
                                    ask_for<width>(next, ldb, g));
  });
}

// Computes C [rows][16 groups] (+)= A B for any number of column groups. Steps past the last whole tile of B are
// computed as on every level.
template <typename T>
void dense_product(int64_t rows, int64_t groups, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps,
                   float* c, int64_t ldc, bool accumulate, const T* next) {
  if constexpr (std::is_same_v<T, float>) {
    product(rows, groups, a, lda, b, ldb, steps, c, ldc, accumulate, next);
  } else {
    constexpr int64_t kVectorRows = 4;
    const int64_t tiles = steps / kTileSteps, rest = steps % kTileSteps, done = steps - rest;
    if (tiles > 0 && rows > kVectorRows) {
      on_tiles(rows, groups, a, lda, b, ldb, tiles, c, ldc, accumulate, next);
    } else if (tiles > 0) {
      const NoDenormals scope;
      const auto run = rows == 1   ? on_vectors<1>
                       : rows == 2 ? on_vectors<2>
                       : rows == 3 ? on_vectors<3>
                                   : on_vectors<4>;
      run(groups, a, lda, b, ldb, tiles, c, ldc, accumulate, next);
    }
    if (rest > 0) {
      product(rows, groups, a + 2 * done, lda, b + done * ldb, ldb, rest, c, ldc, accumulate || tiles > 0,
              next == nullptr ? nullptr : next + done * ldb);
    }
  }
}

}  // namespace
}  // namespace smartkv::kernels
