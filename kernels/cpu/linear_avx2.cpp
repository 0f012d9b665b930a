// AVX2 with FMA and F16C: 16 lanes are two registers.
#include <immintrin.h>

#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/vec16_avx2.h"

namespace smartkv::kernels {
namespace {

struct Ops {
  using F = Vec16;
  struct BfWeights {
    F even, odd;
  };
  struct Int {
    __m256i a, b;
  };
  using Bytes = Int;
  static constexpr int kAccumulators = 8;
  static constexpr int kIntAccumulators = 8;

  static F load_half(const void* p) {
    const auto* halves = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static int load_word(const void* p) {
    int word;
    __builtin_memcpy(&word, p, sizeof(word));
    return word;
  }
  static __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

  // A pair as two floats: the bits of a bf16 are the upper half of its f32.
  static __m256 even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256 odd(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static BfWeights split(__m256i a, __m256i b) { return {{even(a), even(b)}, {odd(a), odd(b)}}; }
  static BfWeights load_bf16(const uint16_t* p) { return split(load_256(p), load_256(p + 16)); }
  static BfWeights broadcast_bf16(const uint16_t* p) {
    const __m256i pair = _mm256_set1_epi32(load_word(p));
    return split(pair, pair);
  }
  static F dot_bf16(F acc, BfWeights w, BfWeights x) { return F::fma(w.even, x.even, F::fma(w.odd, x.odd, acc)); }

  static Int zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static F to_float(Int x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  static Bytes load_bytes(const uint8_t* p) { return {load_256(p), load_256(p + 32)}; }
  static void load_nibbles(const uint8_t* p, Bytes& low, Bytes& high) {
    const Bytes both = load_bytes(p);
    const __m256i mask = _mm256_set1_epi8(15);
    low = {_mm256_and_si256(both.a, mask), _mm256_and_si256(both.b, mask)};
    high = {_mm256_and_si256(_mm256_srli_epi16(both.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(both.b, 4), mask)};
  }
  template <int kIndex, int kHalf>
  static Bytes load_six(const uint8_t* p) {
    constexpr int kShift = 4 * (kIndex % 2) + 2 * kHalf;  // of the two upper bits, which go to bits 4 and 5
    const auto six = [](__m256i nibbles, __m256i line) {
      const __m256i low = kHalf == 0 ? nibbles : _mm256_srli_epi16(nibbles, 4);
      const __m256i high = kShift <= 4 ? _mm256_slli_epi16(line, 4 - kShift) : _mm256_srli_epi16(line, kShift - 4);
      return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
    };
    const Bytes nibbles = load_bytes(p + 64 * kIndex), line = load_bytes(p + 256 + 64 * (kIndex / 2));
    return {six(nibbles.a, line.a), six(nibbles.b, line.b)};
  }
  static F load_codes(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
  }
  static __m256i quadruples(__m256i w, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1));
  }
  template <bool kNarrow>
  static __m256i dot_half(__m256i sum, __m256i w, __m256i x) {
    if constexpr (kNarrow) return _mm256_add_epi32(sum, quadruples(w, x));
    // maddubs saturates at 16 bits: the weights' upper bit apart from the rest, each product pair fits.
    const __m256i upper = _mm256_set1_epi8(static_cast<char>(0x80));
    const __m256i low = quadruples(_mm256_andnot_si256(upper, w), x);
    return _mm256_add_epi32(sum, _mm256_add_epi32(low, quadruples(_mm256_and_si256(upper, w), x)));
  }
  template <bool kNarrow>
  static Int dot_int8(Int sum, Bytes w, const int8_t* x) {
    const __m256i value = _mm256_set1_epi32(load_word(x));
    return {dot_half<kNarrow>(sum.a, w.a, value), dot_half<kNarrow>(sum.b, w.b, value)};
  }

  static __m256 widen(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static void quantize(const uint16_t* x, int64_t k, int8_t* q, float* scale, float* sum) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t begin = 0; begin < k; begin += kGroupSize) {
      __m256 values[4];
      F magnitude = F::zero();
      for (int i = 0; i < 4; ++i) {
        values[i] = widen(x + begin + 8 * i);
        magnitude.a = _mm256_max_ps(magnitude.a, _mm256_andnot_ps(sign, values[i]));
      }
      const float largest = magnitude.reduce_max();
      const float step = largest / 127.0f;
      const __m256 inverse = _mm256_set1_ps(largest > kSmallestMax ? 127.0f / largest : 0.0f);
      int32_t total = 0;
      for (int i = 0; i < 4; ++i) {
        alignas(32) int32_t integers[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(integers), _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse)));
        for (int j = 0; j < 8; ++j) {
          q[begin + 8 * i + j] = static_cast<int8_t>(integers[j]);
          total += integers[j];
        }
      }
      scale[begin / kGroupSize] = step;
      sum[begin / kGroupSize] = step * static_cast<float>(total);
    }
  }
};

}  // namespace

constinit const LinearKernels kLinearAvx2 = make_linear_kernels<Ops>();

}  // namespace smartkv::kernels
