// Dot products of unsigned codes with 16-bit weights, exact in integers, in portable C++: the interface that the other
// levels share. Include after the level's vec16_*.h. The codes' layout is quantized_page.h's.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vec16_scalar.h"

namespace smartkv::kernels {
namespace {

constexpr int kCodeRows = 1, kCodeGroups = 4;  // register tile: rows of weights x groups of 16 code rows
constexpr float kMaxWeight = 32512.0f;         // 127 * 256: both of its bytes fit into an int8

using WeightQuad = uint64_t;  // four weights, in the order that Sums::add reads them

// x factor, of at most kMaxWeight, rounded to integers, as four quads.
inline void store_weights(Vec16 x, Vec16 factor, WeightQuad* quads) {
  int16_t weights[16];
  for (int i = 0; i < 16; ++i) weights[i] = static_cast<int16_t>(std::nearbyintf(x.lane[i] * factor.lane[i]));
  std::memcpy(quads, weights, sizeof weights);
}

// Codes of 16 rows x 4 columns: group g of a block of 64 rows.
struct Codes {
  uint8_t code[64];

  template <int Bits>
  static Codes decode(const uint8_t* block, int g) {
    Codes r;
    for (int i = 0; i < 64; ++i) {
      if constexpr (Bits == 8) {
        r.code[i] = block[64 * g + i];
      } else if constexpr (Bits == 4) {
        r.code[i] = static_cast<uint8_t>(block[64 * (g / 2) + i] >> (4 * (g % 2)) & 15);
      } else {
        r.code[i] = static_cast<uint8_t>(block[i] >> (2 * g) & 3);
        if constexpr (Bits == 3) {
          const int c = 64 * g + i;
          r.code[i] = static_cast<uint8_t>(r.code[i] | (block[64 + c / 8] >> (c % 8) & 1) << 2);
        }
      }
    }
    return r;
  }
};

// Sums of 16 rows. At most 64 quads: 255 * kMaxWeight * 256 is below 2^31.
struct Sums {
  int32_t lane[16];

  static Sums zero() { return {}; }
  void add(const Codes& codes, const WeightQuad& quad) {
    int16_t weights[4];
    std::memcpy(weights, &quad, sizeof weights);
    for (int i = 0; i < 64; ++i) lane[i / 4] += codes.code[i] * weights[i % 4];
  }
  Vec16 value() const {
    Vec16 r;
    for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<float>(lane[i]);
    return r;
  }
};

}  // namespace
}  // namespace smartkv::kernels
