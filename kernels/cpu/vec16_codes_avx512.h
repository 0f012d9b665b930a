// Dot products of codes with 16-bit weights on AVX-512. Uses VNNI where the file is compiled for it, with weights split
// into two planes of int8. Interface: vec16_codes_scalar.h.
#pragma once

#include <cstring>

#include "kernels/calibrated_page.h"
#include "kernels/cpu/vec16_avx512.h"

namespace smartkv::kernels {
namespace {

constexpr float kMaxWeight = 32512.0f;

inline __m512i load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }

// Returns the bits of every byte under Mask, after a shift of the bytes to the left, or to the right if Shift is
// negative.
template <int Shift, int Mask>
__m512i shifted_bits(__m512i x) {
#ifdef __GFNI__
  constexpr uint64_t kMatrix = [] {  // Row 7 - i names the bit of x that becomes bit i.
    uint64_t matrix = 0;
    for (int i = 0; i < 8; ++i) {
      if ((Mask >> i & 1) != 0 && i - Shift >= 0 && i - Shift < 8) matrix |= uint64_t{1} << (i - Shift + 8 * (7 - i));
    }
    return matrix;
  }();
  return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64(static_cast<int64_t>(kMatrix)), 0);
#else
  if constexpr (Shift > 0) x = _mm512_slli_epi16(x, Shift);
  if constexpr (Shift < 0) x = _mm512_srli_epi16(x, -Shift);
  return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(Mask)));
#endif
}

// Returns codes 64 G to 64 G + 63 of a block. packed: the first 64 bytes of the block, or for 4 bits those of the
// group's half; third: the third bits.
template <int Bits, int G>
__m512i decoded(__m512i packed, const uint8_t* third) {
  if constexpr (Bits == 4) {
    return shifted_bits < G % 2 == 0 ? 4 : 0, 0xf0 > (packed);
  } else if constexpr (Bits == 2) {
    return shifted_bits<6 - 2 * G, 0xc0>(packed);
  } else {
    const __m512i low = shifted_bits<5 - 2 * G, 0x60>(packed);
    const __mmask64 top = _load_mask64(reinterpret_cast<__mmask64*>(const_cast<uint8_t*>(third + 8 * G)));
    return _mm512_mask_add_epi8(low, top, low, _mm512_set1_epi8(-128));
  }
}

template <int Bits>
void decode_block(const uint8_t* in, uint8_t* out) {
  if constexpr (Bits == 8) {
    for (int g = 0; g < 4; ++g) _mm512_storeu_si512(out + 64 * g, load_bytes(in + 64 * g));
  } else {
    const __m512i first = load_bytes(in), second = Bits == 4 ? load_bytes(in + 64) : first;
    _mm512_storeu_si512(out, decoded<Bits, 0>(first, in + 64));
    _mm512_storeu_si512(out + 64, decoded<Bits, 1>(first, in + 64));
    _mm512_storeu_si512(out + 128, decoded<Bits, 2>(second, in + 64));
    _mm512_storeu_si512(out + 192, decoded<Bits, 3>(second, in + 64));
  }
}

template <int Bits>
inline __m512i level_bytes() {
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kLevelBytes<Bits>.data())));
}

// Returns codes 64 G to 64 G + 63 of a block of a calibrated page.
template <int Bits, int G>
__m512i calibrated_codes(const uint8_t* in) {
  __m512i codes = _mm512_setzero_si512();
  if constexpr (Bits >= 4) codes = shifted_bits<(G % 2 == 0 ? 0 : -4), 15>(load_bytes(in + 64 * (G / 2)));
  constexpr int kPairs = Bits >= 4 ? 128 : 0, kShift = Bits >= 4 ? 4 : 0;
  if constexpr ((Bits & 2) != 0) {
    const __m512i pairs = shifted_bits<kShift - 2 * G, 3 << kShift>(load_bytes(in + kPairs));
    codes = _mm512_or_si512(codes, pairs);
  }
  if constexpr ((Bits & 1) != 0) {
    constexpr int kOnes = kPairs + ((Bits & 2) != 0 ? 64 : 0);
    const __mmask64 ones = _load_mask64(reinterpret_cast<__mmask64*>(const_cast<uint8_t*>(in + kOnes + 8 * G)));
    codes = _mm512_mask_add_epi8(codes, ones, codes, _mm512_set1_epi8(1 << (Bits - 1)));
  }
  return codes;
}

template <int Bits, int Piece>
void decode_levels(const uint8_t* in, uint8_t* out, int64_t stride) {
  const auto store = [&](int g, __m512i codes) {
    __m512i bytes = codes;
    if constexpr (Bits <= 4) bytes = _mm512_shuffle_epi8(level_bytes<Bits>(), codes);
    if constexpr (Bits == 5 || Bits == 6) {
      bytes = _mm512_or_si512(_mm512_slli_epi16(codes, 8 - Bits), _mm512_set1_epi8(1 << (7 - Bits)));
    }
    if constexpr (Piece == 64) {
      _mm512_storeu_si512(out + g * stride, bytes);
    } else {
      uint8_t* const to = out + 4 * g * stride;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(bytes));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + stride), _mm512_extracti32x4_epi32(bytes, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * stride), _mm512_extracti32x4_epi32(bytes, 2));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * stride), _mm512_extracti32x4_epi32(bytes, 3));
    }
  };
  if constexpr (Bits == 8) {
    for (int g = 0; g < 4; ++g) store(g, load_bytes(in + 64 * g));
  } else {
    store(0, calibrated_codes<Bits, 0>(in));
    store(1, calibrated_codes<Bits, 1>(in));
    store(2, calibrated_codes<Bits, 2>(in));
    store(3, calibrated_codes<Bits, 3>(in));
  }
}

inline void spread_bytes(const uint8_t* p, Vec16 out[4]) {
  const __m512i bytes = load_bytes(p), byte = _mm512_set1_epi32(255);
  out[0] = {_mm512_cvtepi32_ps(_mm512_and_si512(bytes, byte))};
  out[1] = {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, 8), byte))};
  out[2] = {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, 16), byte))};
  out[3] = {_mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 24))};
}

struct Codes {
  __m512i v;
  static Codes load(const uint8_t* p) { return {load_bytes(p)}; }
};

#ifdef __AVX512VNNI__
constexpr int kCodeRows = 3, kCodeGroups = 4;

// A row consists of two planes of int8 [n]: weight = 256 high + low.
inline void store_weights(Vec16 x, Vec16 factor, uint8_t* row, int64_t n, int64_t c) {
  // With 128 added, the second byte is `high`, and the first byte is `low` with its sign bit inverted.
  __m512i w = _mm512_cvtps_epi32(_mm512_fmadd_ps(x.v, factor.v, _mm512_set1_ps(128.0f)));
  const __m128i bytes = _mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
  w = _mm512_shuffle_epi8(w, _mm512_broadcast_i32x4(bytes));
  w = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13), w);
  const __m256i planes = _mm512_castsi512_si256(w);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(row + c), _mm256_castsi256_si128(planes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(row + n + c),
                   _mm_xor_si128(_mm256_extracti128_si256(planes, 1), _mm_set1_epi8(-128)));
}

struct Weights {
  __m512i high, low;  // int8 [4] each, repeated

  static __m512i plane(const uint8_t* p) {
    int32_t quad;
    std::memcpy(&quad, p, sizeof quad);
    return _mm512_set1_epi32(quad);
  }
  static Weights load(const uint8_t* row, int64_t n, int64_t c) { return {plane(row + c), plane(row + n + c)}; }
};

// Returns the sums of both planes together. The sum of each plane is below 2^24, so exact as a float.
inline Vec16 whole_sums(__m512i high, __m512i low) {
  return {_mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(low))};
}

struct Sums {
  // The type of the instruction's sums. With __m512i, g++ 12 moves every sum to another register and back.
  using Ints = int32_t __attribute__((vector_size(64)));
  Ints high, low;

  static Sums zero() { return {Ints{}, Ints{}}; }
  static Ints dot(Ints acc, __m512i codes, __m512i weights) {
    return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc), codes, weights));
  }
  void add(const Codes& codes, const Weights& weights) {
    high = dot(high, codes.v, weights.high);
    low = dot(low, codes.v, weights.low);
  }
  Vec16 value() const { return whole_sums(reinterpret_cast<__m512i>(high), reinterpret_cast<__m512i>(low)); }
};
#else
constexpr int kCodeRows = 4, kCodeGroups = 2;

inline void store_weights(Vec16 x, Vec16 factor, uint8_t* row, int64_t, int64_t c) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * c),
                      _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((x * factor).v)));
}

struct Weights {
  __m512i v;  // int16 [4], repeated
  static Weights load(const uint8_t* row, int64_t, int64_t c) {
    int64_t quad;
    std::memcpy(&quad, row + 2 * c, sizeof quad);
    return {_mm512_set1_epi64(quad)};
  }
};

struct Sums {
  __m512i first, last;  // Sums of 8 rows each, two sums per row.

  static Sums zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
  static __m512i dot(__m512i acc, __m256i codes, __m512i weights) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_cvtepu8_epi16(codes), weights));
  }
  void add(const Codes& codes, const Weights& weights) {
    first = dot(first, _mm512_castsi512_si256(codes.v), weights.v);
    last = dot(last, _mm512_extracti64x4_epi64(codes.v, 1), weights.v);
  }
  Vec16 value() const {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return {_mm512_cvtepi32_ps(
        _mm512_add_epi32(_mm512_permutex2var_epi32(first, even, last), _mm512_permutex2var_epi32(first, odd, last)))};
  }
};
#endif

}  // namespace
}  // namespace smartkv::kernels
