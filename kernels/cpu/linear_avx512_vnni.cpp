// AVX-512 with BF16 and VNNI: vdpbf16ps and vpdpbusd multiply pairs and quadruples in one instruction.
#include <immintrin.h>

#include "kernels/cpu/linear_ops_avx512.h"
#include "kernels/cpu/linear_tile.h"

namespace smartkv::kernels {
namespace {

struct Ops : Avx512Ops {
  using BfWeights = __m512bh;

  static BfWeights load_bf16(const uint16_t* p) { return (BfWeights)_mm512_load_si512(p); }
  static __m512bh broadcast_bf16(const uint16_t* p) { return (__m512bh)_mm512_set1_epi32(load_word(p)); }
  static F dot_bf16(F acc, BfWeights w, __m512bh x) { return {_mm512_dpbf16_ps(acc.v, w, x)}; }

  template <bool kNarrow>
  static __m512i dot_int8(__m512i sum, Bytes w, const int8_t* x) {
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(load_word(x)));
  }
};

}  // namespace

constinit const LinearKernels kLinearAvx512Vnni = make_linear_kernels<Ops>();

}  // namespace smartkv::kernels
