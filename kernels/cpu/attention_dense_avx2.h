// Products of bf16 pages on AVX2. Included by attention_dense.h.
//
// A's rows are first widened to f32, so that a broadcast is a load. B is widened once for up to six rows: sixteen
// registers hold their sums. The sums of a row run over the same products in the same order whatever the tile is.
#pragma once

#include "kernels/attention_kernels.h"

namespace smartkv::kernels {
namespace {

// Computes C [MR][16 NP] (+)= A [MR][..] B. A step covers two columns of A.
template <int MR, int NP>
void wide_tile(const float* a, int64_t lda, const uint16_t* b, int64_t ldb, int64_t steps, float* c, int64_t ldc,
               bool accumulate, const uint16_t* next) {
  constexpr int kHalves = 2 * NP;
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 acc[MR][kHalves];
  const float* x[MR];
  for (int i = 0; i < MR; ++i) {
    x[i] = a + i * lda;
    asm("" : "+r"(x[i]));  // Keeps GCC from computing it again for each value.
    for (int h = 0; h < kHalves; ++h)
      acc[i][h] = accumulate ? _mm256_loadu_ps(c + i * ldc + 8 * h) : _mm256_setzero_ps();
  }
  const auto multiply = [&](const __m256(&values)[kHalves], int64_t column) {
    for (int i = 0; i < MR; ++i) {
      const __m256 of_row = _mm256_broadcast_ss(x[i] + column);
      for (int h = 0; h < kHalves; ++h) acc[i][h] = _mm256_fmadd_ps(values[h], of_row, acc[i][h]);
    }
  };
  for (int64_t s = 0; s < steps; ++s) {
    if (next != nullptr) {
      for (int j = 0; j < NP; ++j) Vec16::prefetch_l2(next + s * ldb + 32 * j);
    }
    const auto pairs = [&](int h) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + s * ldb + 16 * h));
    };
    __m256 values[kHalves];
    for (int h = 0; h < kHalves; ++h) values[h] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs(h), 16));
    multiply(values, 2 * s);
    for (int h = 0; h < kHalves; ++h) values[h] = _mm256_castsi256_ps(_mm256_and_si256(pairs(h), upper));
    multiply(values, 2 * s + 1);
  }
  for (int i = 0; i < MR; ++i) {
    for (int h = 0; h < kHalves; ++h) _mm256_storeu_ps(c + i * ldc + 8 * h, acc[i][h]);
  }
}

template <int MR, int NP>
void wide_tiles(int64_t groups, const float* a, int64_t lda, const uint16_t* b, int64_t ldb, int64_t steps, float* c,
                int64_t ldc, bool accumulate, const uint16_t* next) {
  int64_t g = 0;
  for (; g + NP <= groups; g += NP) {
    wide_tile<MR, NP>(a, lda, b + 32 * g, ldb, steps, c + 16 * g, ldc, accumulate,
                      next == nullptr ? nullptr : next + 32 * g);
  }
  if constexpr (NP > 1) {
    if (g < groups) {
      wide_tiles<MR, NP / 2>(groups - g, a, lda, b + 32 * g, ldb, steps, c + 16 * g, ldc, accumulate,
                             next == nullptr ? nullptr : next + 32 * g);
    }
  }
}

inline void widened_product(int64_t rows, int64_t groups, const uint16_t* a, int64_t lda, const uint16_t* b,
                            int64_t ldb, int64_t steps, float* c, int64_t ldc, bool accumulate, const uint16_t* next) {
  constexpr int kMost = 6;
  constexpr int64_t kStride = kMaxHeadDim > kPageTokens ? kMaxHeadDim : kPageTokens;
  alignas(64) float wide[kMost * kStride];
  for (int64_t r = 0; r < rows;) {
    const int64_t n = rows - r < kMost ? rows - r : kMost;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t k = 0; k < 2 * steps; k += 16) Vec16::load_bf16(a + (r + i) * lda + k).store(wide + i * kStride + k);
    }
    const auto of = [&]<int MR, int NP>(std::integral_constant<int, MR>, std::integral_constant<int, NP>) {
      wide_tiles<MR, NP>(groups, wide, kStride, b, ldb, steps, c + r * ldc, ldc, accumulate, r == 0 ? next : nullptr);
    };
    switch (n) {
      case 1: of(std::integral_constant<int, 1>{}, std::integral_constant<int, 4>{}); break;
      case 2: of(std::integral_constant<int, 2>{}, std::integral_constant<int, 2>{}); break;
      case 3: of(std::integral_constant<int, 3>{}, std::integral_constant<int, 2>{}); break;
      case 4: of(std::integral_constant<int, 4>{}, std::integral_constant<int, 1>{}); break;
      case 5: of(std::integral_constant<int, 5>{}, std::integral_constant<int, 1>{}); break;
      default: of(std::integral_constant<int, kMost>{}, std::integral_constant<int, 1>{}); break;
    }
    r += n;
  }
}

}  // namespace
}  // namespace smartkv::kernels
