// The products of dense pages in bf16 on AMX tiles: 16 rows of a page's pairs are a tile as they lie. Included by
// attention_dense.h.
#pragma once

#include <algorithm>
#include <cstring>

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

// The same for few rows, bit for bit, on vectors (see linear_amx.cpp): loads of tiles would keep fewer lines of a page on
// their way.
template <int Rows, int Groups>
inline void vector_tile(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, int64_t tiles, float* c, int64_t ldc,
                        bool accumulate, const uint16_t* next) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512 sum[Rows][Groups];
  for (int r = 0; r < Rows; ++r) {
    for (int g = 0; g < Groups; ++g) sum[r][g] = accumulate ? _mm512_loadu_ps(c + r * ldc + 16 * g) : _mm512_setzero_ps();
  }
  for (int64_t t = 0; t < tiles; ++t) {
    __m512 even[Rows][Groups], odd[Rows][Groups];
    for (int r = 0; r < Rows; ++r) {
      for (int g = 0; g < Groups; ++g) even[r][g] = odd[r][g] = _mm512_setzero_ps();
    }
    for (int64_t s = t * kTileSteps; s < (t + 1) * kTileSteps; ++s) {
      __m512 x_even[Rows], x_odd[Rows];
      for (int r = 0; r < Rows; ++r) {
        uint32_t pair;
        std::memcpy(&pair, a + r * lda + 2 * s, sizeof pair);
        x_even[r] = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(pair << 16)));
        x_odd[r] = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(pair & 0xffff0000u)));
      }
      for (int g = 0; g < Groups; ++g) {
        if (next != nullptr) Vec16::prefetch(next + s * ldb + 32 * g);
        const __m512i pairs = _mm512_loadu_si512(b + s * ldb + 32 * g);
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

// Denormals must be zeros.
template <int Rows>
[[gnu::noinline]] void on_vectors(int64_t groups, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                                  int64_t tiles, float* c, int64_t ldc, bool accumulate, const uint16_t* next) {
  int64_t g = 0;
  for (; g + 2 <= groups; g += 2) {
    vector_tile<Rows, 2>(a, lda, b + 32 * g, ldb, tiles, c + 16 * g, ldc, accumulate, next == nullptr ? nullptr : next + 32 * g);
  }
  if (g < groups) {
    vector_tile<Rows, 1>(a, lda, b + 32 * g, ldb, tiles, c + 16 * g, ldc, accumulate, next == nullptr ? nullptr : next + 32 * g);
  }
}

// Reads and writes A and C up to the next whole tile of rows.
inline void on_tiles(int64_t rows, int64_t groups, const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb,
                     int64_t tiles, float* c, int64_t ldc, bool accumulate, const uint16_t* next) {
  for (int64_t row = 0; row < rows; row += kTileRows) {
    const uint16_t* const ask = row == 0 ? next : nullptr;
    int64_t g = 0;
    const auto run = [&]<int Groups>(std::integral_constant<int, Groups>) {
      for (; g + Groups <= groups; g += Groups) {
        amx_tile<Groups>(a + row * lda, lda, b + 32 * g, ldb, tiles, c + row * ldc + 16 * g, ldc, accumulate,
                         ask == nullptr ? nullptr : ask + 32 * g);
      }
    };
    run(std::integral_constant<int, 4>{});
    run(std::integral_constant<int, 2>{});
    run(std::integral_constant<int, 1>{});
  }
}

// C [rows][16 groups] (+)= A B for any number of column groups; steps past the last whole tile of B as on every level.
template <typename T>
void dense_product(int64_t rows, int64_t groups, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c,
                   int64_t ldc, bool accumulate, const T* next) {
  if constexpr (std::is_same_v<T, float>) {
    product(rows, groups, a, lda, b, ldb, steps, c, ldc, accumulate, next);
  } else {
    constexpr int64_t kVectorRows = 4;
    const int64_t tiles = steps / kTileSteps, rest = steps % kTileSteps, done = steps - rest;
    if (tiles > 0 && rows > kVectorRows) {
      on_tiles(rows, groups, a, lda, b, ldb, tiles, c, ldc, accumulate, next);
    } else if (tiles > 0) {
      const NoDenormals scope;
      const auto run = rows == 1 ? on_vectors<1> : rows == 2 ? on_vectors<2> : rows == 3 ? on_vectors<3> : on_vectors<4>;
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
