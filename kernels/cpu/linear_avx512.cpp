// AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#include "kernels/cpu/linear_ops_avx512.h"
#include "kernels/cpu/linear_tile.h"

namespace smartkv::kernels {
namespace {

struct Ops : Avx512Ops {
  // A pair as two floats: the bits of a bf16 are the upper half of its f32.
  struct BfWeights {
    F even, odd;
  };

  static BfWeights split(__m512i pairs) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))}, {_mm512_castsi512_ps(_mm512_and_si512(pairs, upper))}};
  }
  static BfWeights load_bf16(const uint16_t* p) { return split(_mm512_load_si512(p)); }
  static BfWeights broadcast_bf16(const uint16_t* p) { return split(_mm512_set1_epi32(load_word(p))); }
  static F dot_bf16(F acc, BfWeights w, BfWeights x) { return F::fma(w.even, x.even, F::fma(w.odd, x.odd, acc)); }

  template <bool kNarrow>
  static __m512i dot_int8(__m512i sum, Bytes w, const int8_t* x) {
    const __m512i value = _mm512_set1_epi32(load_word(x));
    const __m512i ones = _mm512_set1_epi16(1);
    if constexpr (kNarrow) {
      return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, value), ones));
    } else {
      // maddubs saturates at 16 bits. With the upper bit of the weights apart from the rest, each pair of products
      // fits.
      const __m512i upper = _mm512_set1_epi8(static_cast<char>(0x80));
      const __m512i low = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_andnot_si512(upper, w), value), ones);
      const __m512i high = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_and_si512(upper, w), value), ones);
      return _mm512_add_epi32(sum, _mm512_add_epi32(low, high));
    }
  }
};

}  // namespace

constinit const LinearKernels kLinearAvx512 = make_linear_kernels<Ops>();

}  // namespace smartkv::kernels
