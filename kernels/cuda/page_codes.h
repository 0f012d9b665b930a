// Codes of quantized pages (kernels/quantized_page.h) on the device: where they lie, how they are read, and what they
// stand for.
#pragma once

#include "kernels/cuda/attention_tables.h"
#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {

// Returns the bits of a run, in the order of kCodeBits.
__device__ __forceinline__ int bits_of_run(int run) { return run == 0 ? 8 : 5 - run; }

// Where a quad of a page lies in memory, in bytes from the first code on. bits 0: the quad has no codes.
struct QuadPlace {
  int bits, bytes;
};
__device__ __forceinline__ QuadPlace quad_place(const uint8_t (&quads)[4], int quad, int extent) {
  int before = 0, bytes = 0;
  for (int run = 0; run < 4; ++run) {
    const int bits = bits_of_run(run), stride = block_rows(extent) * bits / 2;
    if (quad < before + quads[run]) return {bits, bytes + (quad - before) * stride};
    before += quads[run];
    bytes += quads[run] * stride;
  }
  return {0, 0};
}

// How the codes of a quad are read. A block of 64 rows has four parts of 16 rows. Code `part` lies part * step bits up,
// where each 8 bits are 16 words of the block. Codes of three bits are codes of two bits and a plane for the third bit.
struct QuadEntry {
  uint32_t place;  // Words from the first code, plus step << 16, plus 1 << 24 for three bits.
  uint32_t mask;   // 0: no codes

  __device__ int words() const { return static_cast<int>(place & 0xffffu); }
  __device__ int step() const { return static_cast<int>(place >> 16 & 0xffu); }
  __device__ bool three() const { return place >> 24 != 0; }
  __device__ bool eight() const { return mask == 0xffffffffu; }
  __device__ int block_words() const { return 8 * step() + (three() ? 8 : 0); }
};
__device__ __forceinline__ QuadEntry quad_entry(int bits, int words) {
  if (bits == 0) return {0, 0};
  const int step = bits == 3 ? 2 : bits;
  return {static_cast<uint32_t>(words) | static_cast<uint32_t>(step) << 16 | (bits == 3 ? 1u << 24 : 0u),
          ((1u << step) - 1) * 0x01010101u};
}
// Returns the entry of a quad in shared memory, where quads are quad_stride() apart.
__device__ __forceinline__ QuadEntry entry_of(const uint8_t (&quads)[4], int quad, int extent) {
  int before = 0, words = 0;
  for (int run = 0; run < 4; ++run) {
    const int bits = bits_of_run(run), stride = quad_stride(block_rows(extent) * bits / 2) / 4;
    if (quad < before + quads[run]) return quad_entry(bits, words + (quad - before) * stride);
    before += quads[run];
    words += quads[run] * stride;
  }
  return quad_entry(0, 0);
}

// Returns the words of a block before the rows of a part.
__device__ __forceinline__ int part_words(const QuadEntry& quad, int part) { return (part * quad.step() >> 3) * 16; }

// Returns four codes of row `row` (of 16) of a part, one per byte. block: a block of 64 rows; word: its word
// part_words() + row.
__device__ __forceinline__ uint32_t codes_of(const QuadEntry& quad, const uint32_t* block, uint32_t word, int part,
                                             int row) {
  const uint32_t low = word >> (part * quad.step() & 7) & quad.mask;
  if (!quad.three()) return low;
  const int from = 16 * part + row;
  const uint32_t third = block[16 + from / 8] >> (4 * (from % 8)) & 15u;
  return low | (third * 0x00204081u & 0x01010101u) << 2;  // Moves bit i to bit 8 i.
}

// The bits of 1024 + n as f16, for n in [0, 1024), and of 128 + n as bf16, for n in [0, 128), are these bits plus n.
constexpr uint32_t kHalfMagic = 0x64006400u, kBf16Magic = 0x43004300u;
constexpr float kHalfOffset = 1024.0f, kBf16Offset = 128.0f;

// Returns codes 0 and 2 (even), and 1 and 3 (odd), as f16, plus kHalfOffset.
__device__ __forceinline__ void half_fragment(uint32_t codes, uint32_t& even, uint32_t& odd) {
  even = (codes & 0x00ff00ffu) | kHalfMagic;
  odd = (codes >> 8 & 0x00ff00ffu) | kHalfMagic;
}

// Does the same for bf16, plus kBf16Offset unless the codes have eight bits.
__device__ __forceinline__ void bf16_fragment(const QuadEntry& quad, uint32_t codes, uint32_t& even, uint32_t& odd) {
  if (!quad.eight()) {
    even = (codes & 0x00ff00ffu) | kBf16Magic;
    odd = (codes >> 8 & 0x00ff00ffu) | kBf16Magic;
    return;
  }
  constexpr uint32_t kFloat = 0x4b000000u;  // 2^23: a byte in its low bits adds itself.
  const auto value = [&](unsigned selector) {
    return __uint_as_float(__byte_perm(codes, kFloat, selector)) - 8388608.0f;
  };
  even = pack_bf16(value(0x7540), value(0x7542));
  odd = pack_bf16(value(0x7541), value(0x7543));
}

// A column as a line: value = zero + scale (code - middle).
struct Line {
  float scale, zero, middle;
  bool eight;  // Whether the codes have eight bits.
};
__device__ __forceinline__ Line line_of(const uint8_t (&quads)[4], int column, const uint16_t* scales,
                                        const uint16_t* zeros) {
  const float zero = half_to_float(zeros[column]);
  int end = 0;
  for (int run = 0; run < 4; ++run) {
    end += 4 * quads[run];
    if (column >= end) continue;
    const int bits = bits_of_run(run);
    const float scale = half_to_float(scales[column]) * static_cast<float>(1 << (8 - bits));
    const auto middle = static_cast<float>(1 << (bits - 1));
    return {scale, fmaf(scale, middle, zero), middle, bits == 8};
  }
  return {0.0f, zero, 0.0f, false};
}

}  // namespace smartkv::kernels::cuda
