// Dot products of codes with 16-bit weights on AVX2. Interface: vec16_codes_scalar.h.
#pragma once

#include <cstring>

#include "kernels/calibrated_page.h"
#include "kernels/cpu/vec16_avx2.h"

namespace smartkv::kernels {
namespace {

constexpr int kCodeRows = 4, kCodeGroups = 1;
constexpr float kMaxWeight = 32512.0f;

// Swaps the second and the third of each four weights, so that even and odd columns form pairs.
inline void store_weights(Vec16 x, Vec16 factor, uint8_t* row, int64_t, int64_t c) {
  x = x * factor;
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  const __m256i pairs =
      _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(_mm256_permute4x64_epi64(packed, 0xd8), 0xd8), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * c), pairs);
}

inline __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// Returns 255 in every byte with a set bit.
inline __m256i spread_bits(const uint8_t* p) {
  int32_t bits;
  std::memcpy(&bits, p, sizeof bits);
  const __m256i of_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i select = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte), select);
  return _mm256_cmpeq_epi8(spread, select);
}

template <int Bits>
void decode_block(const uint8_t* in, uint8_t* out) {
  for (int i = 0; i < 8; ++i) {  // 32 codes
    const uint8_t* from = in + (Bits == 8 ? 32 * i : Bits == 4 ? i / 4 * 64 + i % 2 * 32 : i % 2 * 32);
    const __m256i x = load_bytes(from);
    __m256i bytes = x;
    if constexpr (Bits < 8) {
      // The left shift that brings the codes to the top of their bytes, or just below the third bit.
      const int shift = Bits == 4 ? (i / 2 % 2 == 0 ? 4 : 0) : 8 - Bits - 2 * (i / 2);
      const __m128i by = _mm_cvtsi32_si128(shift < 0 ? -shift : shift);
      bytes = _mm256_and_si256(shift < 0 ? _mm256_srl_epi16(x, by) : _mm256_sll_epi16(x, by),
                               _mm256_set1_epi8(static_cast<char>(Bits == 4   ? 0xf0
                                                                  : Bits == 3 ? 0x60
                                                                              : 0xc0)));
    }
    if constexpr (Bits == 3) {
      bytes = _mm256_or_si256(bytes, _mm256_and_si256(spread_bits(in + 64 + 4 * i), _mm256_set1_epi8(-128)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * i), bytes);
  }
}

template <int Bits, int Piece>
void decode_levels(const uint8_t* in, uint8_t* out, int64_t stride) {
  constexpr int kPairs = Bits >= 4 ? 128 : 0, kOnes = kPairs + ((Bits & 2) != 0 ? 64 : 0);
  const auto shifted = [](__m256i x, int by, int mask) {
    return _mm256_and_si256(_mm256_srl_epi16(x, _mm_cvtsi32_si128(by)), _mm256_set1_epi8(static_cast<char>(mask)));
  };
  for (int i = 0; i < 8; ++i) {  // 32 codes
    __m256i codes = _mm256_setzero_si256();
    if constexpr (Bits == 8) {
      codes = load_bytes(in + 32 * i);
    } else {
      if constexpr (Bits >= 4) codes = shifted(load_bytes(in + i / 4 * 64 + i % 2 * 32), 4 * (i / 2 % 2), 15);
      if constexpr ((Bits & 2) != 0) {
        const __m256i pairs = shifted(load_bytes(in + kPairs + i % 2 * 32), 2 * (i / 2), 3);
        codes = _mm256_or_si256(codes, _mm256_slli_epi16(pairs, Bits >= 4 ? 4 : 0));
      }
      if constexpr ((Bits & 1) != 0) {
        const __m256i ones = _mm256_and_si256(spread_bits(in + kOnes + 4 * i), _mm256_set1_epi8(1 << (Bits - 1)));
        codes = _mm256_or_si256(codes, ones);
      }
    }
    __m256i bytes = codes;
    if constexpr (Bits <= 4) {
      const __m128i levels = _mm_load_si128(reinterpret_cast<const __m128i*>(kLevelBytes<Bits>.data()));
      bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), codes);
    } else if constexpr (Bits < 8) {
      bytes = _mm256_or_si256(_mm256_slli_epi16(codes, 8 - Bits), _mm256_set1_epi8(1 << (7 - Bits)));
    }
    if constexpr (Piece == 64) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i / 2 * stride + i % 2 * 32), bytes);
    } else {
      uint8_t* const to = out + 2 * i * stride;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + stride), _mm256_extracti128_si256(bytes, 1));
    }
  }
}

inline void spread_bytes(const uint8_t* p, Vec16 out[4]) {
  const __m256i low = load_bytes(p), high = load_bytes(p + 32), byte = _mm256_set1_epi32(255);
  for (int i = 0; i < 4; ++i) {
    const __m128i by = _mm_cvtsi32_si128(8 * i);
    out[i] = {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(low, by), byte)),
              _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(high, by), byte))};
  }
}

// The even and the odd bytes of 16 rows as 16-bit numbers, pairs of columns for madd. This avoids the cost of widening
// bytes across the halves of the register.
struct Codes {
  __m256i even[2], odd[2];
  static Codes load(const uint8_t* p) {
    Codes codes;
    for (int h = 0; h < 2; ++h) {
      const __m256i bytes = load_bytes(p + 32 * h);
      codes.even[h] = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
      codes.odd[h] = _mm256_srli_epi16(bytes, 8);
    }
    return codes;
  }
};

struct Weights {
  __m256i even, odd;  // int16 [2], repeated
  static Weights load(const uint8_t* row, int64_t, int64_t c) {
    int32_t pairs[2];
    std::memcpy(pairs, row + 2 * c, sizeof pairs);
    return {_mm256_set1_epi32(pairs[0]), _mm256_set1_epi32(pairs[1])};
  }
};

struct Sums {
  __m256i half[2];  // Sums of 8 rows each.

  static Sums zero() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
  void add(const Codes& codes, const Weights& weights) {
    for (int h = 0; h < 2; ++h) {
      half[h] = _mm256_add_epi32(half[h], _mm256_madd_epi16(codes.even[h], weights.even));
      half[h] = _mm256_add_epi32(half[h], _mm256_madd_epi16(codes.odd[h], weights.odd));
    }
  }
  Vec16 value() const { return {_mm256_cvtepi32_ps(half[0]), _mm256_cvtepi32_ps(half[1])}; }
};

}  // namespace
}  // namespace smartkv::kernels
