// Small dense matrix products on register tiles, for the scores and the values of dense pages. Include after one
// vec16_*.h. Everything has internal linkage.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace smartkv::kernels {
namespace {

// Computes C [MR][16 NP] (+)= A [MR][..] B. A step is one row of B and, for bf16, a pair of A's columns.
// next: the B to prefetch for the next call, or null.
template <typename T, int MR, int NP>
void tile(const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c, int64_t ldc, bool accumulate,
          const T* next) {
  constexpr int kStep = std::is_same_v<T, float> ? 1 : 2;
  Vec16 acc[MR][NP];
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NP; ++j) acc[i][j] = accumulate ? Vec16::load(c + i * ldc + 16 * j) : Vec16::zero();
  }
  for (int64_t s = 0; s < steps; ++s) {
    if (next != nullptr) {
      for (int j = 0; j < NP; ++j) Vec16::prefetch_l2(next + s * ldb + 16 * kStep * j);
    }
    for (int i = 0; i < MR; ++i) {
      const T* x = a + i * lda + kStep * s;
      for (int j = 0; j < NP; ++j) {
        if constexpr (kStep == 1) {
          acc[i][j] = Vec16::fma(Vec16::load(b + s * ldb + 16 * j), Vec16::set1(*x), acc[i][j]);
        } else {
          uint32_t pair;
          std::memcpy(&pair, x, sizeof pair);
          acc[i][j] = Vec16::dot_pairs(acc[i][j], b + s * ldb + 32 * j, pair);
        }
      }
    }
  }
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NP; ++j) acc[i][j].store(c + i * ldc + 16 * j);
  }
}

// Divides the rows into tiles of nearly equal size, because a tile of one or two rows waits for its own sums.
template <typename T, int NP>
void tile_rows(int64_t rows, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c, int64_t ldc,
               bool accumulate, const T* next) {
  int64_t r = 0;
  const auto run = [&]<int MR>(std::integral_constant<int, MR>) {
    tile<T, MR, NP>(a + r * lda, lda, b, ldb, steps, c + r * ldc, ldc, accumulate, r == 0 ? next : nullptr);
    r += MR;
  };
  for (int64_t tiles = (rows + Vec16::kRows - 1) / Vec16::kRows; tiles > 0; --tiles) {
    const int64_t n = (rows - r + tiles - 1) / tiles;
    [&]<int... I>(std::integer_sequence<int, I...>) {
      ((n == I + 1 ? run(std::integral_constant<int, I + 1>{}) : void()), ...);
    }(std::make_integer_sequence<int, Vec16::kRows>{});
  }
}

// Calls run(Groups, g) for column groups [g, g + Groups) in turn until all are covered, with Groups up to Most.
template <int Most, typename Run>
void for_each_groups(int64_t groups, const Run& run) {
  int64_t g = 0;
  const auto of = [&]<int Groups>(std::integral_constant<int, Groups> width) {
    for (; g + Groups <= groups; g += Groups) run(width, g);
  };
  if constexpr (Most >= 4) of(std::integral_constant<int, 4>{});
  of(std::integral_constant<int, 2>{});
  of(std::integral_constant<int, 1>{});
}

// Computes C [rows][16 groups] (+)= A B for any number of column groups.
template <typename T>
void product(int64_t rows, int64_t groups, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps, float* c,
             int64_t ldc, bool accumulate, const T* next) {
  constexpr int64_t kGroup = std::is_same_v<T, float> ? 16 : 32;
  for_each_groups<4>(groups, [&](auto width, int64_t g) {
    tile_rows<T, width>(rows, a, lda, b + g * kGroup, ldb, steps, c + 16 * g, ldc, accumulate,
                        next == nullptr ? nullptr : next + g * kGroup);
  });
}

}  // namespace
}  // namespace smartkv::kernels

#ifdef __AMX_BF16__
#include "kernels/cpu/attention_dense_amx.h"
#else
#if defined(__AVX2__) && !defined(__AVX512F__)
#define SMARTKV_WIDENED_PRODUCT
#include "kernels/cpu/attention_dense_avx2.h"
#endif
namespace smartkv::kernels {
namespace {

// State that the products of a block of query rows need while they run. This level needs none.
struct BlockScope {
  explicit BlockScope(int64_t) {}
};

// Returns how many steps of bf16, at least `steps`, dense_product() needs to sum a row in the same way in every block.
constexpr int64_t whole_steps(int64_t steps) { return steps; }

template <typename T>
void dense_product(int64_t rows, int64_t groups, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t steps,
                   float* c, int64_t ldc, bool accumulate, const T* next) {
#ifdef SMARTKV_WIDENED_PRODUCT
  if constexpr (std::is_same_v<T, uint16_t>) {
    return widened_product(rows, groups, a, lda, b, ldb, steps, c, ldc, accumulate, next);
  }
#endif
  product(rows, groups, a, lda, b, ldb, steps, c, ldc, accumulate, next);
}

}  // namespace
}  // namespace smartkv::kernels
#endif
