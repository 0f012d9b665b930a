// Sixteen floats in one AVX-512 register; with AVX-512 BF16 where the file is compiled for it. Interface:
// vec16_scalar.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace smartkv::kernels {
namespace {

struct Vec16 {
  __m512 v;

  static constexpr int kRows = 6;

  static Vec16 zero() { return {_mm512_setzero_ps()}; }
  static Vec16 set1(float x) { return {_mm512_set1_ps(x)}; }
  static Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec16 load_half(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static Vec16 load_bf16(const uint16_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
  }
  static Vec16 of_bytes(__m128i bytes) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))}; }
  static Vec16 load_u8(const uint8_t* p) { return of_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec16 load_u4(const uint8_t* p) {
    const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), low = _mm_set1_epi8(15);
    return of_bytes(_mm_unpacklo_epi8(_mm_and_si128(pairs, low), _mm_and_si128(_mm_srli_epi16(pairs, 4), low)));
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store_bf16(uint16_t* p) const {
#ifdef __AVX512BF16__
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
#else
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bf16(), 16)));
#endif
  }
  static void store_bf16_pairs(Vec16 a, Vec16 b, uint16_t* p) {
#ifdef __AVX512BF16__
    alignas(64) static constexpr int16_t kBeside[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_load_si512(kBeside), both));
#else
    const __m512i upper = _mm512_and_si512(b.rounded_bf16(), _mm512_set1_epi32(-65536));
    _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(a.rounded_bf16(), 16), upper));
#endif
  }
#ifndef __AVX512BF16__
  // Returns bits whose upper halves are the lanes in bf16.
  __m512i rounded_bf16() const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  }
#endif
  void store_codes(uint8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  Vec16 first(int n, float fill) const {
    const __mmask16 keep = static_cast<__mmask16>(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
    return {_mm512_mask_blend_ps(keep, _mm512_set1_ps(fill), v)};
  }

  friend Vec16 operator+(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec16 operator-(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec16 operator*(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec16 operator/(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec16 max(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec16 min(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }
  static uint32_t greater(Vec16 a, Vec16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
  static Vec16 max_abs(Vec16 a, Vec16 b) { return {_mm512_range_ps(a.v, b.v, 0b1011)}; }
  static Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec16 round(Vec16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static Vec16 ldexp(Vec16 x, Vec16 n) {
    return {_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n.v, _mm512_set1_ps(-126.0f), _CMP_GE_OQ), x.v, n.v)};
  }

  // Transposes [16][16] numbers. Row p of `to` gets number p of each of the 16 rows, counted from byte `byte`. The rows
  // of `to` are `stride` numbers apart.
  static void transpose(const char* const* rows, int64_t byte, uint32_t* to, int64_t stride) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows[i] + byte);
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {  // Lane l of a[i + c] is number 4 l + c of rows i to i + 3.
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int c = 0; c < 4; ++c) {
      const __m512i low = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x44),
                    low2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x44);
      const __m512i high = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xee),
                    high2 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xee);
      _mm512_storeu_si512(to + c * stride, _mm512_shuffle_i32x4(low, low2, 0x88));
      _mm512_storeu_si512(to + (4 + c) * stride, _mm512_shuffle_i32x4(low, low2, 0xdd));
      _mm512_storeu_si512(to + (8 + c) * stride, _mm512_shuffle_i32x4(high, high2, 0x88));
      _mm512_storeu_si512(to + (12 + c) * stride, _mm512_shuffle_i32x4(high, high2, 0xdd));
    }
  }

  float reduce_add() const {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
  }
  float reduce_max() const { return _mm512_reduce_max_ps(v); }

  static Vec16 dot_pairs(Vec16 acc, const uint16_t* pairs, uint32_t x) {
    const __m512i raw = _mm512_loadu_si512(pairs);
#ifdef __AVX512BF16__
    return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(raw),
                             reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x))))};
#else
    const __m512 lo = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x << 16)));
    const __m512 hi = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(x & 0xffff0000u)));
    acc.v = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(raw, 16)), lo, acc.v);
    const __m512i high = _mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
    return {_mm512_fmadd_ps(_mm512_castsi512_ps(high), hi, acc.v)};
#endif
  }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace
}  // namespace smartkv::kernels
