// Dot products of codes with 16-bit weights on AVX-512; with VNNI where the file is compiled for it, the weights being
// split into two planes of int8. Interface: vec16_codes_scalar.h.
#pragma once

#include "kernels/cpu/vec16_avx512.h"

namespace smartkv::kernels {
namespace {

constexpr int kCodeRows = 4, kCodeGroups = 2;
constexpr float kMaxWeight = 32512.0f;

struct WeightQuad {
#ifdef __AVX512VNNI__
  int32_t high, low;  // int8 [4] each: weight = 256 high + low
#else
  int64_t weights;  // int16 [4]
#endif
};

inline void store_weights(Vec16 x, Vec16 factor, WeightQuad* quads) {
#ifdef __AVX512VNNI__
  // With 128 added, the second byte is `high`, and the first one is `low` but for its sign bit.
  __m512i w = _mm512_cvtps_epi32(_mm512_fmadd_ps(x.v, factor.v, _mm512_set1_ps(128.0f)));
  const __m128i bytes = _mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  w = _mm512_shuffle_epi8(w, _mm512_broadcast_i32x4(bytes));
  w = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6), w);
  const __m256i sign = _mm256_set1_epi64x(static_cast<int64_t>(0x8080808000000000u));
  const __m256i packed = _mm256_xor_si256(_mm512_castsi512_si256(w), sign);
#else
  const __m256i packed = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((x * factor).v));
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(quads), packed);
}

struct Codes {
  __m512i v;

  static __m512i shift(__m512i x, int bits) {
    switch (bits) {
      case 2: return _mm512_srli_epi16(x, 2);
      case 4: return _mm512_srli_epi16(x, 4);
      case 6: return _mm512_srli_epi16(x, 6);
      default: return x;
    }
  }
  template <int Bits>
  static Codes decode(const uint8_t* block, int g) {
    if constexpr (Bits == 8) return {_mm512_loadu_si512(block + 64 * g)};
    if constexpr (Bits == 4) {
      return {_mm512_and_si512(shift(_mm512_loadu_si512(block + 64 * (g / 2)), 4 * (g % 2)), _mm512_set1_epi8(15))};
    }
    const __m512i low = _mm512_and_si512(shift(_mm512_loadu_si512(block), 2 * g), _mm512_set1_epi8(3));
    if constexpr (Bits == 2) return {low};
    const __mmask64 third = _load_mask64(reinterpret_cast<__mmask64*>(const_cast<uint8_t*>(block + 64 + 8 * g)));
    return {_mm512_mask_add_epi8(low, third, low, _mm512_set1_epi8(4))};
  }
};

#ifdef __AVX512VNNI__
struct Sums {
  // Typed as what the instruction adds: as __m512i, g++ 12 moves every sum to another register and back.
  using Ints = int32_t __attribute__((vector_size(64)));
  Ints high, low;

  static Sums zero() { return {Ints{}, Ints{}}; }
  static Ints dot(Ints acc, __m512i codes, int32_t weights) {
    return reinterpret_cast<Ints>(
        _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc), codes, _mm512_set1_epi32(weights)));
  }
  void add(const Codes& codes, const WeightQuad& quad) {
    high = dot(high, codes.v, quad.high);
    low = dot(low, codes.v, quad.low);
  }
  static __m512 floats(Ints x) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x)); }
  Vec16 value() const {  // both planes are below 2^24, exact as floats
    return {_mm512_fmadd_ps(floats(high), _mm512_set1_ps(256.0f), floats(low))};
  }
};
#else
struct Sums {
  __m512i first, last;  // of 8 rows each, two sums a row

  static Sums zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
  static __m512i dot(__m512i acc, __m256i codes, __m512i weights) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_cvtepu8_epi16(codes), weights));
  }
  void add(const Codes& codes, const WeightQuad& quad) {
    const __m512i weights = _mm512_set1_epi64(quad.weights);
    first = dot(first, _mm512_castsi512_si256(codes.v), weights);
    last = dot(last, _mm512_extracti64x4_epi64(codes.v, 1), weights);
  }
  Vec16 value() const {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return {_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_permutex2var_epi32(first, even, last),
                                                _mm512_permutex2var_epi32(first, odd, last)))};
  }
};
#endif

}  // namespace
}  // namespace smartkv::kernels
