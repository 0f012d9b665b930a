// Conversion between floats and IEEE half precision (f16), without hardware support.
#pragma once

#include <bit>
#include <cstdint>

namespace smartkv::kernels {

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Placing the bits at f32's exponent and scaling by 2^112 is exact for normal and subnormal halves alike.
  const float value = std::bit_cast<float>(magnitude << 13) * std::bit_cast<float>(0x77800000u);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

// Rounds to nearest even. Saturates at 65504 instead of becoming infinite. NaN stays NaN.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (magnitude != magnitude) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 65504.0f) return static_cast<uint16_t>(sign | 0x7bffu);
  if (magnitude < std::bit_cast<float>(0x38800000u)) {  // Below 2^-14: subnormal, in steps of 2^-24.
    const float shifted = magnitude + 0.5f;             // The last place of the sum is 2^-24.
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rebased = (bits & 0x7fffffffu) - (112u << 23);
  return static_cast<uint16_t>(sign | (rebased + 0xfffu + (rebased >> 13 & 1)) >> 13);
}

}  // namespace smartkv::kernels
