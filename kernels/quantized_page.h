// A quantised page: kPageTokens tokens of one layer, all KV heads, as unsigned codes of 8, 4, 3 or 2 bits, or of none.
//
// K is quantised per channel, V per token, both asymmetrically (KIVI, Liu et al. 2024). A code of b bits stands for the
// upper bits of a byte: value = zero + scale * (code << (8 - b)). So a dot product runs over bytes of one kind, however
// wide the codes: q.k = sum_d (q_d scale_d) byte_d + sum_d q_d zero_d, and for the values
// sum_t (p_t scale_t) byte_td + sum_t p_t zero_t. A column without codes is its zero, the column's mean.
//
// Four columns that share a width make a quad: 4 channels of K, or 4 tokens of V. The quads of a page come in runs,
// widest first; which channels are in which run is up to `channel_order`, and the order of tokens is up to the caller.
//
// Bytes of one KV head's block, each part contiguous (T = kPageTokens, D = head_dim; D', T': columns that have codes):
//   K scales f16 [D'], K zeros f16 [D], V scales f16 [T'], V zeros f16 [T]   (K's in the order of channel_order)
//   up to the next multiple of 64, K codes: quads of K, each of extent T;  V codes: quads of V, each of extent D
// A quad of extent E is cut into blocks of 64 rows x 4 columns = 256 codes, rows past E having codes of 0;
// code c = 4 row + column:
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

// Rows of whole blocks.
constexpr int64_t block_rows(int64_t extent) { return (extent + kBlockRows - 1) / kBlockRows * kBlockRows; }

// Quads of each width, in the order of kCodeBits, and those without codes, which come last.
struct CodeRuns {
  std::array<uint8_t, 4> quads = {};
  uint8_t dropped = 0;

  int64_t coded_quads() const { return quads[0] + quads[1] + quads[2] + quads[3]; }
  int64_t n_quads() const { return coded_quads() + dropped; }
  // Bytes of the codes of quads with this extent.
  int64_t bytes(int64_t extent) const {
    int64_t bits = 0;
    for (std::size_t i = 0; i < quads.size(); ++i) bits += quads[i] * kCodeBits[i];
    return bits * 4 * block_rows(extent) / 8;
  }
  bool operator==(const CodeRuns&) const = default;
};

// `columns` (a multiple of 4) of one width.
CodeRuns uniform_runs(int64_t columns, int bits);  // std::invalid_argument if bits is none of kCodeBits

struct QuantizedLayout {
  CodeRuns k;  // over head_dim channels
  CodeRuns v;  // over kPageTokens tokens
  bool operator==(const QuantizedLayout&) const = default;
};

// Offsets into a head's block, bytes; the total is a multiple of 32.
struct QuantizedOffsets {
  int64_t k_scales, k_zeros, v_scales, v_zeros, k_codes, v_codes, total;
};
QuantizedOffsets quantized_offsets(const QuantizedLayout& layout, int64_t head_dim);

// Quantises one KV head. k, v: f32 [kPageTokens, head_dim]; head_dim a multiple of 16 up to 256; channel_order: head_dim
// channel numbers, or nullptr. `block`: quantized_offsets().total bytes. A channel of K is fitted to least squared error, extremes
// clipped at few bits; its scale is f16 with a unit of 2^(b - 8). A token of V keeps its whole range: the same channels stand out in many tokens, and clipped they
// would add up in the output.
void quantize_page(const QuantizedLayout& layout, int64_t head_dim, const uint8_t* channel_order, const float* k,
                   const float* v, void* block);

// Reads a block back. k, v: f32 [kPageTokens, head_dim], K in the order of channels, not of channel_order.
void dequantize_page(const QuantizedLayout& layout, int64_t head_dim, const uint8_t* channel_order, const void* block,
                     float* k, float* v);

}  // namespace smartkv::kernels
