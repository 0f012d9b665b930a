// GGUF's blocks of 256 weights in 8 groups of 32 (Q4_K, Q5_K). A block begins with d and dmin in f16, and 12 bytes with
// 6 bits of scale and 6 bits of minimum for each group.
//   weight = d scale q - dmin minimum
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace smartkv {

// Reads the f16 at `p`, which need not be aligned.
inline float read_f16(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return kernels::half_to_float(bits);
}

// Scale and minimum of a group, 6 bits each.
struct GroupLine {
  uint8_t scale, minimum;
};

// Returns scale and minimum of group j, 0 to 7. packed: the 12 bytes.
inline GroupLine k_quant_group(const uint8_t* packed, int j) {
  if (j < 4) return {static_cast<uint8_t>(packed[j] & 63), static_cast<uint8_t>(packed[j + 4] & 63)};
  return {static_cast<uint8_t>((packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4)),
          static_cast<uint8_t>((packed[j + 4] >> 4) | ((packed[j] >> 6) << 4))};
}

}  // namespace smartkv
