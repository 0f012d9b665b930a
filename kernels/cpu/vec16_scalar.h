// Sixteen floats in portable C++: the reference that the other levels are tested against.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace smartkv::kernels {
namespace {

struct Vec16 {
  float lane[16];

  static constexpr int kRows = 1;  // A register tile has kRows x 4 vectors.

#define SMARTKV_LANES(expression)                      \
  Vec16 r;                                             \
  for (int i = 0; i < 16; ++i) r.lane[i] = expression; \
  return r
  static Vec16 zero() { return set1(0.0f); }
  static Vec16 set1(float x) { SMARTKV_LANES(x); }
  static Vec16 load(const float* p) {
    Vec16 r;
    std::memcpy(r.lane, p, sizeof r.lane);
    return r;
  }
  static Vec16 load_half(const uint16_t* p) { SMARTKV_LANES(half_to_float(p[i])); }  // f16
  static Vec16 load_bf16(const uint16_t* p) { SMARTKV_LANES(std::bit_cast<float>(static_cast<uint32_t>(p[i]) << 16)); }
  static Vec16 load_u8(const uint8_t* p) { SMARTKV_LANES(p[i]); }
  // The first of two numbers in a byte is the lower one.
  static Vec16 load_u4(const uint8_t* p) { SMARTKV_LANES(static_cast<float>(p[i / 2] >> 4 * (i % 2) & 15)); }
  void store(float* p) const { std::memcpy(p, lane, sizeof lane); }
  void store_bf16(uint16_t* p) const {
    for (int i = 0; i < 16; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(lane[i]);
      p[i] = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
  }
  // Stores a[0], b[0], a[1], b[1] and so on.
  static void store_bf16_pairs(Vec16 a, Vec16 b, uint16_t* p) {
    uint16_t first[16], second[16];
    a.store_bf16(first);
    b.store_bf16(second);
    for (int i = 0; i < 16; ++i) {
      p[2 * i] = first[i];
      p[2 * i + 1] = second[i];
    }
  }
  void store_codes(uint8_t* p) const {  // Values in [0, 255], rounded to the nearest even integer.
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(std::nearbyintf(lane[i]));
  }
  // Keeps the first min(16, max(0, n)) lanes. The others become `fill`.
  Vec16 first(int n, float fill) const {
    Vec16 r = *this;
    for (int i = 0; i < 16; ++i) {
      if (i >= n) r.lane[i] = fill;
    }
    return r;
  }

  friend Vec16 operator+(Vec16 a, Vec16 b) { SMARTKV_LANES(a.lane[i] + b.lane[i]); }
  friend Vec16 operator-(Vec16 a, Vec16 b) { SMARTKV_LANES(a.lane[i] - b.lane[i]); }
  friend Vec16 operator*(Vec16 a, Vec16 b) { SMARTKV_LANES(a.lane[i] * b.lane[i]); }
  friend Vec16 operator/(Vec16 a, Vec16 b) { SMARTKV_LANES(a.lane[i] / b.lane[i]); }
  static Vec16 max(Vec16 a, Vec16 b) { SMARTKV_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
  static Vec16 min(Vec16 a, Vec16 b) { SMARTKV_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
  // Returns a bit for each lane, the first lane in the lowest bit: whether a > b.
  static uint32_t greater(Vec16 a, Vec16 b) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= static_cast<uint32_t>(a.lane[i] > b.lane[i]) << i;
    return bits;
  }
  // Returns the greater of two absolute values.
  static Vec16 max_abs(Vec16 a, Vec16 b) { SMARTKV_LANES(std::fmax(std::fabs(a.lane[i]), std::fabs(b.lane[i]))); }
  static Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { SMARTKV_LANES(a.lane[i] * b.lane[i] + c.lane[i]); }  // a b + c
  static Vec16 round(Vec16 a) { SMARTKV_LANES(std::nearbyintf(a.lane[i])); }
  // Returns x 2^n for integral n of at most 127. n below -126 gives 0.
  static Vec16 ldexp(Vec16 x, Vec16 n) {
    SMARTKV_LANES(n.lane[i] < -126.0f ? 0.0f : std::ldexp(x.lane[i], static_cast<int>(n.lane[i])));
  }
#undef SMARTKV_LANES

  float reduce_add() const {  // In the order of a vector tree.
    float half[8], quarter[4];
    for (int i = 0; i < 8; ++i) half[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; ++i) quarter[i] = half[i] + half[i + 4];
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
  }
  float reduce_max() const {
    float m = lane[0];
    for (int i = 1; i < 16; ++i) m = lane[i] > m ? lane[i] : m;
    return m;
  }

  // Returns acc + lo(pairs) lo(x) + hi(pairs) hi(x): `pairs` holds 16 pairs of bf16, x one pair for every lane.
  static Vec16 dot_pairs(Vec16 acc, const uint16_t* pairs, uint32_t x) {
    const float lo = std::bit_cast<float>(x << 16), hi = std::bit_cast<float>(x & 0xffff0000u);
    for (int i = 0; i < 16; ++i) {
      acc.lane[i] += std::bit_cast<float>(static_cast<uint32_t>(pairs[2 * i]) << 16) * lo;
      acc.lane[i] += std::bit_cast<float>(static_cast<uint32_t>(pairs[2 * i + 1]) << 16) * hi;
    }
    return acc;
  }
  static void prefetch(const void*) {}  // Into the first-level cache.
  // Into the second-level cache, which allows more lines in flight than the first.
  static void prefetch_l2(const void*) {}
};

}  // namespace
}  // namespace smartkv::kernels
