// Portable C++: the reference for the other levels, and the level of a CPU without AVX2.
#include <cmath>

#include "kernels/bf16.h"
#include "kernels/cpu/linear_tile.h"
#include "kernels/cpu/vec16_scalar.h"
#include "kernels/half.h"

namespace smartkv::kernels {
namespace {

struct Ops {
  using F = Vec16;
  struct BfWeights {
    F even, odd;
  };
  struct Int {
    int32_t v[kLanes];
  };
  struct Bytes {
    uint8_t v[kLanes * 4];
  };
  static constexpr int kAccumulators = 8;
  static constexpr int kIntAccumulators = 8;

  template <class Function>
  static F each(const Function& function) {
    F result;
    for (int i = 0; i < kLanes; ++i) result.lane[i] = function(i);
    return result;
  }

  static F load_half(const void* p) {
    const auto* halves = static_cast<const uint16_t*>(p);
    return each([&](int i) { return half_to_float(halves[i]); });
  }
  // Reads pairs as words: GCC 12 miscompiles the widening of every second bf16 when it vectorizes that loop.
  static BfWeights split(const uint16_t* p, int step) {
    BfWeights result;
    for (int i = 0; i < kLanes; ++i) {
      uint32_t pair;
      std::memcpy(&pair, p + step * i, sizeof(pair));
      result.even.lane[i] = std::bit_cast<float>(pair << 16);
      result.odd.lane[i] = std::bit_cast<float>(pair & 0xffff0000u);
    }
    return result;
  }
  static BfWeights load_bf16(const uint16_t* p) { return split(p, 2); }
  static BfWeights broadcast_bf16(const uint16_t* p) { return split(p, 0); }
  static F dot_bf16(const F& acc, const BfWeights& w, const BfWeights& x) {
    return F::fma(w.even, x.even, F::fma(w.odd, x.odd, acc));
  }

  static Int zero_int() { return {}; }
  static F to_float(const Int& a) {
    return each([&](int i) { return static_cast<float>(a.v[i]); });
  }
  static Bytes load_bytes(const uint8_t* p) {
    Bytes result;
    __builtin_memcpy(result.v, p, sizeof(result.v));
    return result;
  }
  // Shifts to the right, or to the left if kRight is negative, and keeps the bits of kMask.
  template <int kRight, int kMask>
  static Bytes pick(const Bytes& bytes) {
    Bytes result;
    for (int i = 0; i < kLanes * 4; ++i) {
      const int shifted = kRight < 0 ? bytes.v[i] << -kRight : bytes.v[i] >> kRight;
      result.v[i] = static_cast<uint8_t>(shifted & kMask);
    }
    return result;
  }
  static Bytes either(const Bytes& a, const Bytes& b) {
    Bytes result;
    for (int i = 0; i < kLanes * 4; ++i) result.v[i] = a.v[i] | b.v[i];
    return result;
  }
  static Bytes look_up(const uint8_t* table, const Bytes& bytes) {
    Bytes result;
    for (int i = 0; i < kLanes * 4; ++i) result.v[i] = table[bytes.v[i]];
    return result;
  }
  static void load_code_pairs(const uint8_t* p, F& low, F& high) {
    low = each([&](int i) { return static_cast<float>(p[i] & 15); });
    high = each([&](int i) { return static_cast<float>(p[i] >> 4); });
  }
  // Halves of floats of 4 exponent and 3 mantissa bits. As the upper bits of an f16 these stand for 2^-8 of their
  // values.
  static F load_e4m3(const uint8_t* p) {
    return each([&](int i) { return half_to_float(static_cast<uint16_t>(p[i] << 7)) * 128.0f; });
  }
  static F load_codes(const uint8_t* p) {
    return each([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
  }
  template <bool kNarrow>
  static Int dot_int8(const Int& sum, const Bytes& w, const int8_t* x) {
    Int result = sum;
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < 4; ++j) result.v[i] += w.v[4 * i + j] * x[j];
    }
    return result;
  }

  static void quantize(const uint16_t* x, int64_t k, int8_t* q, float* scale, float* sum) {
    for (int64_t begin = 0; begin < k; begin += kGroupSize) {
      float largest = 0;
      for (int64_t i = begin; i < begin + kGroupSize; ++i) {
        const float magnitude = std::fabs(from_bf16(x[i]));
        if (magnitude > largest) largest = magnitude;
      }
      const float step = largest / 127.0f;
      const float inverse = largest > kSmallestMax ? 127.0f / largest : 0.0f;
      int32_t total = 0;
      for (int64_t i = begin; i < begin + kGroupSize; ++i) {
        q[i] = static_cast<int8_t>(std::nearbyintf(from_bf16(x[i]) * inverse));
        total += q[i];
      }
      scale[begin / kGroupSize] = step;
      sum[begin / kGroupSize] = step * static_cast<float>(total);
    }
  }
};

}  // namespace

constinit const LinearKernels kLinearScalar = make_linear_kernels<Ops>();

}  // namespace smartkv::kernels
