// Vector operations for linear_tile.h that the AVX-512 levels share. Only for the files of these levels.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vec16_avx512.h"
#include "kernels/linear_format.h"

namespace smartkv::kernels {
namespace {

struct Avx512Ops {
  using F = Vec16;
  using Bytes = __m512i;
  using Int = __m512i;
  static constexpr int kAccumulators = 28;
  static constexpr int kIntAccumulators = 16;

  static F load_half(const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
  static int load_word(const void* p) {
    int word;
    __builtin_memcpy(&word, p, sizeof(word));
    return word;
  }

  static __m512i zero_int() { return _mm512_setzero_si512(); }
  static F to_float(__m512i a) { return {_mm512_cvtepi32_ps(a)}; }
  static Bytes load_bytes(const uint8_t* p) { return _mm512_load_si512(p); }
  // Shifts to the right, or to the left if kRight is negative, and keeps the bits of kMask.
  template <int kRight, int kMask>
  static Bytes pick(Bytes bytes) {
    const __m512i shifted = kRight < 0 ? _mm512_slli_epi16(bytes, static_cast<unsigned>(kRight < 0 ? -kRight : 0))
                                       : _mm512_srli_epi16(bytes, static_cast<unsigned>(kRight < 0 ? 0 : kRight));
    return _mm512_and_si512(shifted, _mm512_set1_epi8(kMask));
  }
  static Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
  static Bytes look_up(const uint8_t* table, Bytes bytes) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), bytes);
  }
  static void load_code_pairs(const uint8_t* p, F& low, F& high) {
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
    low = {_mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(15)))};
    high = {_mm512_cvtepi32_ps(_mm512_srli_epi32(codes, 4))};
  }
  // Halves of floats of 4 exponent and 3 mantissa bits. As the upper bits of an f16 these stand for 2^-8 of their
  // values.
  static F load_e4m3(const uint8_t* p) {
    const __m256i words = _mm256_cvtepu8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_slli_epi16(words, 7)), _mm512_set1_ps(128.0f))};
  }
  static F load_codes(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))))};
  }

  static void quantize(const uint16_t* x, int64_t k, int8_t* q, float* scale, float* sum) {
    for (int64_t i = 0; i < k; i += 32) {
      const __m512 a = widen(x + i);
      const __m512 b = widen(x + i + 16);
      const float largest = F{_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b))}.reduce_max();
      const float step = largest / 127.0f;
      const __m512 inverse = _mm512_set1_ps(largest > kSmallestMax ? 127.0f / largest : 0.0f);
      const __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
      const __m512i qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), _mm512_cvtsepi32_epi8(qa));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i + 16), _mm512_cvtsepi32_epi8(qb));
      scale[i / 32] = step;
      sum[i / 32] = step * static_cast<float>(_mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb)));
    }
  }

 private:
  static __m512 widen(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
};

}  // namespace
}  // namespace smartkv::kernels
