// A quantized page: kPageTokens tokens of one layer, all KV heads, as unsigned codes of 8, 4, 3 or 2 bits, or without
// codes.
//
// K is quantized per channel, V per token, both asymmetrically (KIVI, Liu et al. 2024). A code of b bits stands for the
// upper bits of a byte: value = zero + scale * (code << (8 - b)). So a dot product runs over bytes of one kind,
// whatever the width of the codes:
//   keys:   q.k = sum_d (q_d scale_d) byte_d + sum_d q_d zero_d
//   values: o_d = sum_t (p_t scale_t) byte_td + sum_t p_t zero_t
// A column without codes stores only its zero, the mean of its values.
//
// Four columns of the same width form a quad: 4 channels of K, or 4 tokens of V. The quads of a page come in runs,
// widest first. `channel_order` decides which channels are in which run. The caller decides the order of the tokens.
//
// Each KV head has a block of bytes, in contiguous parts (T = kPageTokens, D = head_dim; D', T': columns that have
// codes):
//   K scales f16 [D'], K zeros f16 [D], V scales f16 [T'], V zeros f16 [T]   (K's in the order of channel_order)
//   up to the next multiple of 64, K codes: quads of K, each of extent T;  V codes: quads of V, each of extent D
// A quad of extent E is cut into blocks of 64 rows x 4 columns = 256 codes. Rows past E have codes of 0.
// Code c = 4 row + column lies here:
//   8 bits: 256 bytes, byte c = code c
//   4 bits: 128 bytes, two halves of 64: byte i of half h = code [128 h + i] | code [128 h + 64 + i] << 4
//   2 bits: 64 bytes, byte i = code [i] | code [64 + i] << 2 | code [128 + i] << 4 | code [192 + i] << 6
//   3 bits: the low two bits as for 2 bits, then 32 bytes: bit c (little endian) = bit 2 of code c
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace smartkv::kernels {

constexpr int64_t kPageTokens = 64;
constexpr int64_t kBlockRows = 64;
constexpr std::array<int, 4> kCodeBits = {8, 4, 3, 2};

// Returns `extent` rounded up to the rows of whole blocks.
constexpr int64_t block_rows(int64_t extent) { return (extent + kBlockRows - 1) / kBlockRows * kBlockRows; }

// Number of quads of each width, in the order of kCodeBits, then of quads without codes.
struct CodeRuns {
  std::array<uint8_t, 4> quads = {};
  uint8_t dropped = 0;

  int64_t coded_quads() const { return quads[0] + quads[1] + quads[2] + quads[3]; }
  int64_t n_quads() const { return coded_quads() + dropped; }
  // Returns the bytes of the codes of all quads, each of this extent.
  int64_t bytes(int64_t extent) const {
    int64_t bits = 0;
    for (std::size_t i = 0; i < quads.size(); ++i) bits += quads[i] * kCodeBits[i];
    return bits * 4 * block_rows(extent) / 8;
  }
  bool operator==(const CodeRuns&) const = default;
};

// Returns the runs of `columns` (a multiple of 4) of one width. Throws std::invalid_argument if bits is not in
// kCodeBits.
CodeRuns uniform_runs(int64_t columns, int bits);

// The widths of all columns of a page.
struct QuantizedLayout {
  CodeRuns k;  // over head_dim channels
  CodeRuns v;  // over kPageTokens tokens
  bool operator==(const QuantizedLayout&) const = default;
};

// Offsets into the block of a KV head, in bytes. The total is a multiple of 32.
struct QuantizedOffsets {
  int64_t k_scales, k_zeros, v_scales, v_zeros, k_codes, v_codes, total;
};
QuantizedOffsets quantized_offsets(const QuantizedLayout& layout, int64_t head_dim);

// Quantizes one KV head. k, v: f32 [kPageTokens, head_dim], head_dim a multiple of 16 up to 256; channel_order:
// head_dim channel numbers, or null for the identity; block: quantized_offsets().total bytes.
//  - A channel of K is fitted to the least squared error, which clips extremes at few bits. Its scale is the step of
//    its codes times 2^(b - 8), in f16.
//  - A token of V keeps its whole range. The same channels stand out in many tokens, and their clipping errors would
//    add up in the output.
//
// Throws std::invalid_argument if head_dim or the layout does not fit, or if a value is not finite.
void quantize_page(const QuantizedLayout& layout, int64_t head_dim, const uint8_t* channel_order, const float* k,
                   const float* v, void* block);

// Reads a block back. k, v: f32 [kPageTokens, head_dim]. K has its channels in natural order, not in that of
// channel_order.
void dequantize_page(const QuantizedLayout& layout, int64_t head_dim, const uint8_t* channel_order, const void* block,
                     float* k, float* v);

}  // namespace smartkv::kernels
