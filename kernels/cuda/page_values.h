// Single values of pages on the device.
#pragma once

#include "kernels/cuda/attention_tables.h"
#include "kernels/cuda/page_codes.h"
#include "kernels/cuda/platform.h"
#include "kernels/page_ops.h"

namespace smartkv::kernels::cuda {

__device__ __forceinline__ const uint32_t* words(const unsigned char* bytes) {
  return reinterpret_cast<const uint32_t*>(bytes);
}

// Return where element (d, slot) of K and of V is in a dense page of bf16, in elements.
__device__ __forceinline__ int k_place(int d, int slot) { return (d / 2 * kPage + slot) * 2 + d % 2; }
__device__ __forceinline__ int v_place(int head_dim, int d, int slot) {
  return (slot / 2 * head_dim + d) * 2 + slot % 2;
}

__device__ __forceinline__ float k_of(const TokenPlace& place, int d) {
  if (place.slot == TokenPlace::kRow) return static_cast<const float*>(place.k)[d];
  return low_bf16(static_cast<const uint16_t*>(place.k)[k_place(d, place.slot)]);
}
__device__ __forceinline__ float v_of(const TokenPlace& place, int head_dim, int d) {
  if (place.slot == TokenPlace::kRow) return static_cast<const float*>(place.v)[d];
  return low_bf16(static_cast<const uint16_t*>(place.v)[v_place(head_dim, d, place.slot)]);
}

// K and V of the tokens of one KV head, either as tokens of dense pages, [kPage], or as f32 rows, [kPage, head_dim]
// each.
struct HeadValues {
  const TokenPlace* tokens;  // Null: `k` and `v` are set.
  const float* k;
  const float* v;

  __device__ float k_at(int head_dim, int token, int d) const {
    return tokens == nullptr ? k[token * head_dim + d] : k_of(tokens[token], d);
  }
  __device__ float v_at(int head_dim, int token, int d) const {
    return tokens == nullptr ? v[token * head_dim + d] : v_of(tokens[token], head_dim, d);
  }
};

// Returns the step of a code of this width in units of its byte.
__device__ __forceinline__ float unit_of(int bits) { return static_cast<float>(1 << (8 - bits)); }

// Returns a value of a quantized page. block: the block of a KV head.
__device__ inline float decoded(const Segment& page, const unsigned char* block, bool is_k, int column, int row,
                                int extent) {
  const auto* const halves = reinterpret_cast<const uint16_t*>(block);
  const uint16_t* const scales = halves + (is_k ? 0 : page.v_scales / 2);
  const uint16_t* const zeros = halves + (is_k ? page.k_zeros : page.v_zeros) / 2;
  const QuadPlace of = quad_place(is_k ? page.k_quads : page.v_quads, column / 4, extent);
  const float zero = half_to_float(zeros[column]);
  if (of.bits == 0) return zero;
  const auto* const words = reinterpret_cast<const uint32_t*>(block + (is_k ? page.k_codes : page.v_codes) + of.bytes);
  const QuadEntry quad = quad_entry(of.bits, 0);
  const uint32_t* const codes = words + row / 64 * quad.block_words();
  const int part = row / 16 % 4;
  const uint32_t four = codes_of(quad, codes, codes[part_words(quad, part) + row % 16], part, row % 16);
  const auto code = static_cast<float>(four >> (8 * (column % 4)) & 255u);
  return fmaf(half_to_float(scales[column]) * unit_of(of.bits), code, zero);  // The product is exact.
}

}  // namespace smartkv::kernels::cuda
