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

// Decode a block of one KV head, by all threads of a block of threads. They call put(token, channel, value) for each
// key, and put(first token, channel, values of four tokens) for all values.
template <typename Put>
__device__ __forceinline__ void decode_keys(const WidthView& widths, const unsigned char* page, const float* mean,
                                            const float* within, int dim, const Put& put) {
  for (int i = static_cast<int>(threadIdx.x); i < dim / 4 * kPage; i += kThreads) {
    const int quad = i / kPage, token = i % kPage;
    const CodeBlock block = code_block(widths.head->k_quads, true, quad);
    uint32_t codes = 0;
    if (block.bits > 0) {
      const auto* const from = reinterpret_cast<const uint32_t*>(page + widths.head->k_codes + block.bytes);
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
  const int coded = coded_quads(widths.head->v_quads);
  for (int i = static_cast<int>(threadIdx.x); i < coded * 64; i += kThreads) {
    const int row = i % 64;
    const CodeBlock block = code_block(widths.head->v_quads, false, i / 64);
    const auto* const from = reinterpret_cast<const uint32_t*>(page + widths.head->v_codes + block.bytes);
    const uint32_t codes = row_of_codes(from, block.bits, row);
    const int column = block.column + row % block.columns, channel = widths.v_order[column];
    const float scale = widths.scales[page[widths.head->v_scales + column]] * kLevelUnit, mean = widths.v_mean[channel];
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
