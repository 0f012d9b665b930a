// Calibrated pages (kernels/calibrated_page.h) on the device: where their codes lie, and what they stand for.
#pragma once

#include "kernels/calibrated_page.h"
#include "kernels/cuda/attention_tables.h"
#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {

constexpr float kLevelUnit = 1.0f / 127.0f;

// The widths of one KV head, and what all heads share.
struct WidthView {
  const float *scales, *levels;
  const FlatWidths* head;
  const uint8_t *k_order, *v_order;
  const float *k_mean, *v_mean;
};
// table: WidthTable::on_device.
__device__ __forceinline__ WidthView widths_of(const unsigned char* table, int head, int dim) {
  WidthView view;
  view.scales = reinterpret_cast<const float*>(table);
  view.levels = view.scales + 256;
  const unsigned char* const at = table + kFlatHeads + head * flat_head_bytes(dim);
  view.head = reinterpret_cast<const FlatWidths*>(at);
  view.k_order = at + sizeof(FlatWidths);
  view.v_order = view.k_order + dim;
  view.k_mean = reinterpret_cast<const float*>(view.v_order + dim);
  view.v_mean = view.k_mean + dim;
  return view;
}

// Returns the bits of a run, in the order of kWidths.
__device__ __forceinline__ int width_of_run(int run) { return run == 0 ? 8 : 7 - run; }

__device__ __forceinline__ int coded_quads(const uint8_t (&quads)[8]) {
  int sum = 0;
  for (int run = 0; run < 7; ++run) sum += quads[run];
  return sum;
}

// A block of 256 codes: row r of four codes belongs to column `column` + r % columns. bits 0: there is no such block.
struct CodeBlock {
  int bits, bytes;      // bytes from the first code of the side on
  int column, columns;  // K: 4 columns
  int part;             // of V: the first token is 16 part
};
__device__ __forceinline__ CodeBlock code_block(const uint8_t (&quads)[8], bool is_k, int block) {
  int bytes = 0, column = 0;
  for (int run = 0; run < 7; ++run) {
    const int n = quads[run], bits = width_of_run(run);
    if (block < n) {
      bytes += 32 * bits * block;
      if (!is_k && block < n / 4 * 4) return {bits, bytes, column + block / 4 * 16, 16, block % 4};
      return {bits, bytes, column + 4 * block, 4, 0};
    }
    block -= n;
    bytes += 32 * bits * n;
    column += 4 * n;
  }
  return {0, 0, 4 * block + column, 4, 0};
}

// The slots of the tokens of a page with two tiers.
struct Slots {
  uint64_t wide;    // bit t: token t is wide
  int wide_tokens;  // which have the first slots

  __device__ int of(int token) const {
    const int before = __popcll(wide & ((uint64_t{1} << token) - 1));
    return (wide >> token & 1) != 0 ? before : wide_tokens + token - before;
  }
};
// page: the block of the KV head.
__device__ __forceinline__ Slots slots_of(const FlatWidths& head, const unsigned char* page) {
  uint64_t wide = 0;
  for (int byte = 0; byte < kPage / 8; ++byte) wide |= uint64_t{page[head.mask + byte]} << (8 * byte);
  return {wide, head.wide_tokens};
}

// One of two tiers: slots [first, first + 16 parts).
struct TierSlots {
  const FlatTier* at;
  int first, parts;
};
// tiers: those of K or V of the head.
__device__ __forceinline__ TierSlots tier_of(const FlatTier (&tiers)[2], bool wide, int wide_tokens) {
  return {&tiers[wide ? 1 : 0], wide ? 0 : wide_tokens, (wide ? wide_tokens : kPage - wide_tokens) / 16};
}

// The codes of 16 columns in one tier, in bytes from the first code of the side on: a block of 256 codes for each part.
// bits 0: they have none.
struct TierBlocks {
  int bits, bytes;
};
__device__ __forceinline__ TierBlocks tier_blocks(const TierSlots& tier, int group) {
  int bytes = 0;
  for (int run = 0; run < 7; ++run) {
    const int n = tier.at->quads[run] / 4, group_bytes = 32 * width_of_run(run) * tier.parts;
    if (group < n) return {width_of_run(run), bytes + group_bytes * group};
    group -= n;
    bytes += group_bytes * n;
  }
  return {0, 0};
}

// Returns the four codes of a row of a block, one per byte.
__device__ __forceinline__ uint32_t row_of_codes(const uint32_t* block, int bits, int row) {
  if (bits == 8) return block[row];
  uint32_t codes = 0;
  int shift = 0;
  if (bits >= 4) {
    codes = block[row / 32 * 16 + row % 16] >> (row % 32 / 16 * 4) & 0x0f0f0f0fu;
    block += 32;
    shift = 4;
  }
  if (((bits - shift) & 2) != 0) {
    codes |= (block[row % 16] >> (row / 16 * 2) & 0x03030303u) << shift;
    block += 16;
    shift += 2;
  }
  if (((bits - shift) & 1) != 0) {
    const uint32_t four = block[row / 8] >> (row % 8 * 4) & 15u;
    codes |= (four * 0x00204081u & 0x01010101u) << shift;  // moves bit i to bit 8 i
  }
  return codes;
}

__device__ __forceinline__ float level_of(const float* levels, int bits, uint32_t code) {
  if (bits <= 4) return levels[(1 << bits) - 2 + static_cast<int>(code)];
  return static_cast<float>((256 >> bits) * static_cast<int>(code) + (256 >> bits) / 2 - 128);
}

// Writes the mean key, rotated to the middle of the page: [dim]. All threads of a block call it.
__device__ __forceinline__ void rotate_mean(const WidthView& widths, const float* middle, int dim, float* to) {
  const int half = dim / 2;
  for (int f = static_cast<int>(threadIdx.x); f < half; f += kThreads) {
    const float x = widths.k_mean[f], y = widths.k_mean[f + half], cos = middle[f], sin = middle[half + f];
    to[f] = __fsub_rn(__fmul_rn(x, cos), __fmul_rn(y, sin));
    to[f + half] = __fadd_rn(__fmul_rn(y, cos), __fmul_rn(x, sin));
  }
}
// Returns the offset of channel d at a token. mean: of rotate_mean(); within: PageRotations::within_on_device().
__device__ __forceinline__ float key_offset(const float* mean, const float* within, int dim, int d, int token) {
  const int half = dim / 2, f = d < half ? d : d - half;
  const float cos = within[f * kPage + token], sin = within[(half + f) * kPage + token];
  const float a = mean[f], b = mean[f + half];
  return d < half ? __fsub_rn(__fmul_rn(a, cos), __fmul_rn(b, sin)) : __fadd_rn(__fmul_rn(b, cos), __fmul_rn(a, sin));
}

// Returns the row of four codes in which the tier has a quad of keys, or four slots of a column of values; row: its row
// in the block of the slot's part.
__device__ __forceinline__ uint32_t tier_codes(const TierSlots& tier, const TierBlocks& blocks,
                                               const unsigned char* page, int slot, int row) {
  const int part = (slot - tier.first) / 16;
  const unsigned char* const from = page + tier.at->codes + blocks.bytes + 32 * blocks.bits * part;
  return row_of_codes(reinterpret_cast<const uint32_t*>(from), blocks.bits, row);
}

__device__ __forceinline__ float tier_value(const WidthView& widths, const TierSlots& tier, int bits,
                                            const unsigned char* page, int column, uint32_t code, float offset) {
  const float scale = widths.scales[tier_scale(page + tier.at->scales, column)] * kLevelUnit;
  return fmaf(scale, level_of(widths.levels, bits, code), offset);
}

// As decode_keys() and decode_values(), with two tiers.
template <typename Put>
__device__ __forceinline__ void decode_tiered_keys(const WidthView& widths, const unsigned char* page,
                                                   const float* mean, const float* within, int dim, const Put& put) {
  const Slots slots = slots_of(*widths.head, page);
  for (int i = static_cast<int>(threadIdx.x); i < dim / 4 * kPage; i += kThreads) {
    const int quad = i / kPage, token = i % kPage, slot = slots.of(token);
    const TierSlots tier = tier_of(widths.head->k, slot < slots.wide_tokens, slots.wide_tokens);
    const TierBlocks blocks = tier_blocks(tier, quad / 4);
    const uint32_t codes = blocks.bits > 0 ? tier_codes(tier, blocks, page, slot, quad % 4 * 16 + slot % 16) : 0;
    for (int c = 0; c < 4; ++c) {
      const int channel = widths.k_order[4 * quad + c];
      float x = key_offset(mean, within, dim, channel, token);
      if (blocks.bits > 0) x = tier_value(widths, tier, blocks.bits, page, 4 * quad + c, codes >> (8 * c) & 255u, x);
      put(token, channel, x);
    }
  }
}

template <typename Put>
__device__ __forceinline__ void decode_tiered_values(const WidthView& widths, const unsigned char* page, int dim,
                                                     const Put& put) {
  const Slots slots = slots_of(*widths.head, page);
  for (int i = static_cast<int>(threadIdx.x); i < dim * kPage / 4; i += kThreads) {
    const int column = i % dim, first = i / dim * 4, channel = widths.v_order[column];
    float x[4];
    for (int t = 0; t < 4; ++t) {
      const int slot = slots.of(first + t);
      const TierSlots tier = tier_of(widths.head->v, slot < slots.wide_tokens, slots.wide_tokens);
      const TierBlocks blocks = tier_blocks(tier, column / 16);
      x[t] = widths.v_mean[channel];
      if (blocks.bits == 0) continue;
      const uint32_t codes = tier_codes(tier, blocks, page, slot, slot % 16 / 4 * 16 + column % 16);
      x[t] = tier_value(widths, tier, blocks.bits, page, column, codes >> (8 * (slot % 4)) & 255u, x[t]);
    }
    put(first, channel, x);
  }
}

// Decode a block of one KV head, by all threads of a block of threads. They call put(token, channel, value) for each
// key, and put(first token, channel, values of four tokens) for all values.
template <typename Put>
__device__ __forceinline__ void decode_keys(const WidthView& widths, const unsigned char* page, const float* mean,
                                            const float* within, int dim, const Put& put) {
  if (widths.head->wide_tokens > 0) return decode_tiered_keys(widths, page, mean, within, dim, put);
  for (int i = static_cast<int>(threadIdx.x); i < dim / 4 * kPage; i += kThreads) {
    const int quad = i / kPage, token = i % kPage;
    const CodeBlock block = code_block(widths.head->k[0].quads, true, quad);
    uint32_t codes = 0;
    if (block.bits > 0) {
      const auto* const from = reinterpret_cast<const uint32_t*>(page + widths.head->k[0].codes + block.bytes);
      codes = row_of_codes(from, block.bits, token);
    }
    for (int c = 0; c < 4; ++c) {
      const int channel = widths.k_order[4 * quad + c];
      float x = key_offset(mean, within, dim, channel, token);
      if (block.bits > 0) {
        const float scale = widths.scales[page[4 * quad + c]] * kLevelUnit;
        x = fmaf(scale, level_of(widths.levels, block.bits, codes >> (8 * c) & 255u), x);
      }
      put(token, channel, x);
    }
  }
}

template <typename Put>
__device__ __forceinline__ void decode_values(const WidthView& widths, const unsigned char* page, int dim,
                                              const Put& put) {
  if (widths.head->wide_tokens > 0) return decode_tiered_values(widths, page, dim, put);
  const FlatTier& at = widths.head->v[0];
  const int coded = coded_quads(at.quads);
  for (int i = static_cast<int>(threadIdx.x); i < coded * 64; i += kThreads) {
    const int row = i % 64;
    const CodeBlock block = code_block(at.quads, false, i / 64);
    const auto* const from = reinterpret_cast<const uint32_t*>(page + at.codes + block.bytes);
    const uint32_t codes = row_of_codes(from, block.bits, row);
    const int column = block.column + row % block.columns, channel = widths.v_order[column];
    const float scale = widths.scales[page[at.scales + column]] * kLevelUnit, mean = widths.v_mean[channel];
    float x[4];
    for (int t = 0; t < 4; ++t) {
      x[t] = fmaf(scale, level_of(widths.levels, block.bits, codes >> (8 * t) & 255u), mean);
    }
    put(16 * block.part + row / block.columns * 4, channel, x);
  }
  const int rest = dim - 4 * coded;
  for (int i = static_cast<int>(threadIdx.x); i < rest * kPage / 4; i += kThreads) {
    const int channel = widths.v_order[4 * coded + i % rest];
    const float mean = widths.v_mean[channel], x[4] = {mean, mean, mean, mean};
    put(i / rest * 4, channel, x);
  }
}

}  // namespace smartkv::kernels::cuda
