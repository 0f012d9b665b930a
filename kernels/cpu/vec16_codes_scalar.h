// Dot products of codes with 16-bit weights, exact in integers, in portable C++. The other levels have the same
// interface. Include after the level's vec16_*.h. quantized_page.h describes the layout of the codes.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/calibrated_page.h"
#include "kernels/cpu/vec16_scalar.h"

namespace smartkv::kernels {
namespace {

constexpr int kCodeRows = 1, kCodeGroups = 4;  // Register tile: rows of weights x groups of 16 code rows.
constexpr float kMaxWeight = 32512.0f;         // 127 * 256: both bytes of a weight fit into an int8.

// Rounds x factor, at most kMaxWeight, to integers. Stores them as weights c to c + 15 of a row of n, which takes 2 n
// bytes.
inline void store_weights(Vec16 x, Vec16 factor, uint8_t* row, int64_t, int64_t c) {
  int16_t weights[16];
  for (int i = 0; i < 16; ++i) weights[i] = static_cast<int16_t>(std::nearbyintf(x.lane[i] * factor.lane[i]));
  std::memcpy(row + 2 * c, weights, sizeof weights);
}

// Decodes the 256 codes of a block, 64 rows of a quad, to the bytes that they stand for.
template <int Bits>
void decode_block(const uint8_t* in, uint8_t* out) {
  for (int c = 0; c < 256; ++c) {
    if constexpr (Bits == 8) {
      out[c] = in[c];
    } else if constexpr (Bits == 4) {
      out[c] = static_cast<uint8_t>(in[64 * (c / 128) + c % 64] >> (4 * (c / 64 % 2)) << 4);
    } else {
      out[c] = static_cast<uint8_t>((in[c % 64] >> (2 * (c / 64)) & 3) << (8 - Bits));
      if constexpr (Bits == 3) out[c] = static_cast<uint8_t>(out[c] | (in[64 + c / 8] >> (c % 8) & 1) << 7);
    }
  }
}

// Decodes a block of a calibrated page (calibrated_page.h) to the levels of its 256 codes + 128. Each Piece bytes of
// the result, 16 or 64, begin `stride` bytes behind the one before.
template <int Bits, int Piece>
void decode_levels(const uint8_t* in, uint8_t* out, int64_t stride) {
  for (int c = 0; c < 256; ++c) {
    int code = 0, shift = 0;
    const uint8_t* plane = in;
    if constexpr (Bits == 8) {
      code = in[c];
    } else {
      if constexpr (Bits >= 4) {
        code = plane[c / 128 * 64 + c % 64] >> (4 * (c / 64 % 2)) & 15;
        plane += 128;
        shift = 4;
      }
      if constexpr ((Bits & 2) != 0) {
        code |= (plane[c % 64] >> (2 * (c / 64)) & 3) << shift;
        plane += 64;
        shift += 2;
      }
      if constexpr ((Bits & 1) != 0) code |= (plane[c / 8] >> (c % 8) & 1) << shift;
    }
    out[c / Piece * stride + c % Piece] = static_cast<uint8_t>(code_level(Bits, code) + 128);
  }
}

// Turns 64 bytes into floats: out[i] gets bytes i, i + 4, i + 8 and so on.
inline void spread_bytes(const uint8_t* p, Vec16 out[4]) {
  for (int c = 0; c < 64; ++c) out[c % 4].lane[c / 4] = p[c];
}

// Bytes of 16 rows x 4 columns.
struct Codes {
  const uint8_t* byte;
  static Codes load(const uint8_t* p) { return {p}; }
};

// Weights of columns c to c + 3 of a row of n.
struct Weights {
  int16_t weight[4];
  static Weights load(const uint8_t* row, int64_t, int64_t c) {
    Weights r;
    std::memcpy(r.weight, row + 2 * c, sizeof r.weight);
    return r;
  }
};

// Sums of 16 rows over at most 256 columns: 255 * kMaxWeight * 256 is below 2^31.
struct Sums {
  int32_t lane[16];

  static Sums zero() { return {}; }
  void add(const Codes& codes, const Weights& weights) {
    for (int i = 0; i < 64; ++i) lane[i / 4] += codes.byte[i] * weights.weight[i % 4];
  }
  Vec16 value() const {
    Vec16 r;
    for (int i = 0; i < 16; ++i) r.lane[i] = static_cast<float>(lane[i]);
    return r;
  }
};

}  // namespace
}  // namespace smartkv::kernels
