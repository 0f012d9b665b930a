// Rotary embedding (RoPE) of one head, and its inverse. angles: f32 [2, head_dim / 2], the cos, then the sin, of a
// position; x: f32 [head_dim].
#pragma once

#include <cstdint>

namespace smartkv::kernels {

// Rotates `x` in place.
inline void rotate(const float* angles, int64_t head_dim, float* x) {
  const int64_t half = head_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const float low = x[j], high = x[j + half];
    x[j] = angles[j] * low - angles[half + j] * high;
    x[j + half] = angles[j] * high + angles[half + j] * low;
  }
}

// Rotates `x` back in place. YaRN scales the rotation, so the inverse divides by the square of that scale.
inline void unrotate(const float* angles, int64_t head_dim, float* x) {
  const int64_t half = head_dim / 2;
  for (int64_t j = 0; j < half; ++j) {
    const float scale = 1.0f / (angles[j] * angles[j] + angles[half + j] * angles[half + j]);
    const float low = x[j], high = x[j + half];
    x[j] = (angles[j] * low + angles[half + j] * high) * scale;
    x[j + half] = (angles[j] * high - angles[half + j] * low) * scale;
  }
}

}  // namespace smartkv::kernels
