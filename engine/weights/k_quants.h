// How GGUF's quantized blocks store their scales.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace smartkv {

// Reads the number at `p`, which need not be aligned.
template <typename T>
T read_number(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
inline float read_f16(const uint8_t* p) { return kernels::half_to_float(read_number<uint16_t>(p)); }

// Scale and minimum of a group, 6 bits each.
struct GroupLine {
  uint8_t scale, minimum;
};

// Q4_K, Q5_K: returns scale and minimum of group j, 0 to 7, of 32 weights: d scale q - dmin minimum. packed: 12 bytes
// with 6 bits of scale and 6 bits of minimum for each group.
inline GroupLine k_quant_group(const uint8_t* packed, int j) {
  if (j < 4) return {static_cast<uint8_t>(packed[j] & 63), static_cast<uint8_t>(packed[j + 4] & 63)};
  return {static_cast<uint8_t>((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4)),
          static_cast<uint8_t>((packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))};
}

// Q3_K: returns the scale of half group j, 0 to 15. packed: 12 bytes with 6 bits each.
inline int q3_k_scale(const uint8_t* packed, int j) {
  const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
  return (low | (packed[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) - 32;
}

// IQ4_XS: returns the scale of group j, 0 to 7, of a block.
inline int iq4_xs_scale(const uint8_t* block, int j) {
  const int high = block[2 + j / 4] >> (2 * (j % 4)) & 3;
  return ((block[4 + j / 2] >> (4 * (j % 2)) & 15) | high << 4) - 32;
}

// MXFP4: returns the scale of the doubled levels. exponent: E8M0.
inline float mxfp4_scale(uint8_t exponent) { return std::ldexp(1.0f, exponent - 128); }

// NVFP4: returns the scale of the doubled levels. bits: 4 exponent and 3 mantissa bits; NaN counts as 0.
inline float nvfp4_scale(uint8_t bits) {
  const int magnitude = bits & 0x7f;
  return magnitude == 0x7f ? 0.0f : kernels::half_to_float(static_cast<uint16_t>(magnitude << 7)) * 128.0f;
}

}  // namespace smartkv
