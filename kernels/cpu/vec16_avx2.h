// Sixteen floats in two AVX2 registers. Interface: vec16_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace smartkv::kernels {
namespace {

struct Vec16 {
  __m256 a, b;

  static constexpr int kRows = 1;

  static Vec16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Vec16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static Vec16 load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  static Vec16 load_bf16(const uint16_t* p) {
    const auto half = [](const uint16_t* from) {
      const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    };
    return {half(p), half(p + 8)};
  }
  static Vec16 of_bytes(__m128i bytes) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  static Vec16 load_u8(const uint8_t* p) { return of_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec16 load_u4(const uint8_t* p) {
    const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), low = _mm_set1_epi8(15);
    return of_bytes(_mm_unpacklo_epi8(_mm_and_si128(pairs, low), _mm_and_si128(_mm_srli_epi16(pairs, 4), low)));
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, a);
    _mm256_storeu_ps(p + 8, b);
  }
  static __m128i half_to_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  }
  void store_bf16(uint16_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half_to_bf16(a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), half_to_bf16(b));
  }
  static void store_bf16_pairs(Vec16 x, Vec16 y, uint16_t* p) {
    const auto store = [](__m128i first, __m128i second, uint16_t* to) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi16(first, second));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm_unpackhi_epi16(first, second));
    };
    store(half_to_bf16(x.a), half_to_bf16(y.a), p);
    store(half_to_bf16(x.b), half_to_bf16(y.b), p + 16);
  }
  static __m128i half_to_words(__m256 x) {
    const __m256i rounded = _mm256_cvtps_epi32(x);
    return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
  }
  void store_codes(uint8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(half_to_words(a), half_to_words(b)));
  }
  Vec16 first(int n, float fill) const {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32(n);
    const __m256 f = _mm256_set1_ps(fill);
    const __m256i ka = _mm256_cmpgt_epi32(limit, index);
    const __m256i kb = _mm256_cmpgt_epi32(limit, _mm256_add_epi32(index, _mm256_set1_epi32(8)));
    return {_mm256_blendv_ps(f, a, _mm256_castsi256_ps(ka)), _mm256_blendv_ps(f, b, _mm256_castsi256_ps(kb))};
  }

  friend Vec16 operator+(Vec16 x, Vec16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  friend Vec16 operator-(Vec16 x, Vec16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  friend Vec16 operator*(Vec16 x, Vec16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  friend Vec16 operator/(Vec16 x, Vec16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static Vec16 max(Vec16 x, Vec16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static Vec16 min(Vec16 x, Vec16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static uint32_t greater(Vec16 x, Vec16 y) {
    const auto half = [](__m256 of, __m256 than) {
      return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(of, than, _CMP_GT_OQ)));
    };
    return half(x.a, y.a) | half(x.b, y.b) << 8;
  }
  static Vec16 max_abs(Vec16 x, Vec16 y) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_max_ps(_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, y.a)),
            _mm256_max_ps(_mm256_andnot_ps(sign, x.b), _mm256_andnot_ps(sign, y.b))};
  }
  static Vec16 fma(Vec16 x, Vec16 y, Vec16 z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static Vec16 round(Vec16 x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static __m256 half_ldexp(__m256 x, __m256 n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    const __m256 keep = _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_GE_OQ);
    return _mm256_and_ps(keep, _mm256_mul_ps(x, _mm256_castsi256_ps(exponent)));
  }
  static Vec16 ldexp(Vec16 x, Vec16 n) { return {half_ldexp(x.a, n.a), half_ldexp(x.b, n.b)}; }

  float reduce_add() const {
    const __m256 half = _mm256_add_ps(a, b);
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
  }
  float reduce_max() const {
    const __m256 half = _mm256_max_ps(a, b);
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
  }

  static __m256 half_dot(__m256 acc, const uint16_t* pairs, __m256 lo, __m256 hi) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(raw, 16)), lo, acc);
    const __m256i high = _mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
    return _mm256_fmadd_ps(_mm256_castsi256_ps(high), hi, acc);
  }
  static Vec16 dot_pairs(Vec16 acc, const uint16_t* pairs, uint32_t x) {
    const __m256 lo = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(x << 16)));
    const __m256 hi = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(x & 0xffff0000u)));
    return {half_dot(acc.a, pairs, lo, hi), half_dot(acc.b, pairs + 16, lo, hi)};
  }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace smartkv::kernels
