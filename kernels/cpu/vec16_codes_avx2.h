// Dot products of codes with 16-bit weights on AVX2. Interface: vec16_codes_scalar.h.
#pragma once

#include "kernels/cpu/vec16_avx2.h"

#include <cstring>

namespace smartkv::kernels {
namespace {

constexpr int kCodeRows = 1, kCodeGroups = 2;
constexpr float kMaxWeight = 32512.0f;

using WeightQuad = uint64_t;  // int16 [4]

inline void store_weights(Vec16 x, Vec16 factor, WeightQuad* quads) {
  x = x * factor;
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(quads), _mm256_permute4x64_epi64(packed, 0xd8));
}

struct Codes {
  __m256i a, b;

  static __m256i load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static __m256i shift(__m256i x, int bits) { return _mm256_srl_epi16(x, _mm_cvtsi32_si128(bits)); }
  // 4 in every byte whose bit is set.
  static __m256i third_bits(const uint8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    const __m256i of_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i select = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
    const __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), of_byte), select);
    return _mm256_and_si256(_mm256_cmpeq_epi8(spread, select), _mm256_set1_epi8(4));
  }
  template <int Bits>
  static Codes decode(const uint8_t* block, int g) {
    if constexpr (Bits == 8) return {load(block + 64 * g), load(block + 64 * g + 32)};
    const uint8_t* p = Bits == 4 ? block + 64 * (g / 2) : block;
    const int bits = Bits == 4 ? 4 * (g % 2) : 2 * g;
    const __m256i mask = _mm256_set1_epi8(Bits == 4 ? 15 : 3);
    Codes r{_mm256_and_si256(shift(load(p), bits), mask), _mm256_and_si256(shift(load(p + 32), bits), mask)};
    if constexpr (Bits == 3) {
      r.a = _mm256_or_si256(r.a, third_bits(block + 64 + 8 * g));
      r.b = _mm256_or_si256(r.b, third_bits(block + 64 + 8 * g + 4));
    }
    return r;
  }
};

struct Sums {
  __m256i part[4];  // of 4 rows each, two sums a row

  static Sums zero() {
    const __m256i z = _mm256_setzero_si256();
    return {{z, z, z, z}};
  }
  static __m256i dot(__m256i acc, __m128i codes, __m256i weights) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_cvtepu8_epi16(codes), weights));
  }
  void add(const Codes& codes, const WeightQuad& quad) {
    const __m256i weights = _mm256_set1_epi64x(static_cast<int64_t>(quad));
    part[0] = dot(part[0], _mm256_castsi256_si128(codes.a), weights);
    part[1] = dot(part[1], _mm256_extracti128_si256(codes.a, 1), weights);
    part[2] = dot(part[2], _mm256_castsi256_si128(codes.b), weights);
    part[3] = dot(part[3], _mm256_extracti128_si256(codes.b, 1), weights);
  }
  static __m256 rows(__m256i first, __m256i second) {
    return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(_mm256_hadd_epi32(first, second), 0xd8));
  }
  Vec16 value() const { return {rows(part[0], part[1]), rows(part[2], part[3])}; }
};

}  // namespace
}  // namespace smartkv::kernels
