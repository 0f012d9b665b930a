// A calibrated page: kPageTokens tokens of one layer, all KV heads, in which each quad of four channels has a width of
// its own. A table of the model gives the widths, so all pages of a layer have the same bytes.
//
// Codes stand for what is left after an offset is taken away: the rotated mean of the keys, and the mean of the values.
//   key d of token t:    (R_t mu_K)[d] + s_d level(c) / 127      R_t: the rotation of RoPE at the token's position
//   value d of token t:  mu_V[d] + s_d level(c) / 127
// A column is a channel over the page's 64 tokens. Its scale is one byte k: s = 2^((k - 128) / 8). Levels are integers
// from -128 to 127, so products with them run over bytes. Up to 4 bits they are symmetric and have the least squared
// error for a normal distribution (Max 1960), from 5 bits on they are uniform.
//
// Each KV head has a block of bytes, in contiguous parts (K', V': channels of K and V that have codes):
//   scales of K [K'], scales of V [V'], in the order of the table; up to the next multiple of 64; codes of K, codes of V
// Both sides have their quads in runs, widest first. A block holds 256 codes:
//   K: a quad, 64 tokens x 4 channels: code 4 t + channel
//   V: 4 quads of a run, 16 channels: block i of four holds tokens [16 i, 16 i + 16), code 64 (t % 16 / 4) + 4 channel +
//      t % 4. The last quads of a run, fewer than 4, have a block each: code 16 (t / 4) + 4 channel + t % 4.
// The codes of a block are in planes of 4, 2 or 1 bits, the lowest bits first: 3 bits are 2 and 1, 5 are 4 and 1, 6 are
// 4 and 2; 8 bits are bytes.
//   4 bits: two halves of 64 bytes: byte i of half h = code [128 h + i] | code [128 h + 64 + i] << 4
//   2 bits: 64 bytes, byte i = code [i] | code [64 + i] << 2 | code [128 + i] << 4 | code [192 + i] << 6
//   1 bit:  32 bytes, bit c (little endian) = code c
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/quantized_page.h"

namespace smartkv::kernels {

constexpr std::array<int, 7> kWidths = {8, 6, 5, 4, 3, 2, 1};

// The channels of K or of V of one KV head.
struct ChannelWidths {
  std::array<uint8_t, kWidths.size()> quads = {};  // number of quads of each width; the others have no codes
  std::vector<uint8_t> order;                      // channels in the order of their quads: [head_dim]
  std::vector<float> mean;                         // mu, in natural order: [head_dim]. K: before RoPE

  int64_t coded_quads() const;
  int64_t code_bytes() const;
  double mean_bits() const;  // bits of a code, averaged over all channels
};

// Offsets into the block of a KV head, in bytes. The total is a multiple of 32.
struct CalibratedOffsets {
  int64_t v_scales = 0, k_codes = 0, v_codes = 0, total = 0;
};

struct HeadWidths {
  ChannelWidths k, v;
  int64_t first = 0;      // where the block begins in a page, in bytes
  CalibratedOffsets at;
};

// The rotations of RoPE that calibrated pages need. Thread-safe.
class PageRotations {
 public:
  using Rope = std::function<void(int64_t position, float* cos, float* sin)>;  // as PolicyContext::rope
  PageRotations(int64_t head_dim, const Rope& rope);

  // Cosine and sine of the angle between a page's middle, token kPageTokens / 2, and each of its tokens:
  // f32 [head_dim / 2, kPageTokens].
  const float* cos() const { return within_.data(); }
  const float* sin() const { return within_.data() + half_ * kPageTokens; }
  // Cosines and sines at the middle of page i of a sequence: f32 [2, head_dim / 2]. Valid as long as this object.
  const float* middle(int64_t page) const;
  int64_t half() const { return half_; }

 private:
  int64_t half_;
  Rope rope_;
  std::vector<float> within_;
  mutable std::mutex mutex_;
  mutable std::deque<std::vector<float>> middles_;
};

// The widths of one layer.
struct WidthTable {
  int64_t head_dim = 0;
  std::vector<HeadWidths> heads;
  std::shared_ptr<const PageRotations> rotations;
  int64_t bytes = 0;  // of a page

  // Sets `first`, `at` and `bytes`. Throws std::invalid_argument if head_dim, the number of quads, an order or a mean
  // does not fit.
  void lay_out();
};

// Quantizes one KV head. k, v: f32 [kPageTokens, head_dim], K after RoPE; middle: PageRotations::middle() of the page;
// block: at.total bytes. Throws std::invalid_argument if a value is not finite.
void encode_calibrated(const WidthTable& table, int64_t head, const float* middle, const float* k, const float* v,
                       void* block);

// Reads a block back. k, v: f32 [kPageTokens, head_dim], K after RoPE.
void decode_calibrated(const WidthTable& table, int64_t head, const float* middle, const void* block, float* k,
                       float* v);

// The greatest value of a column, by the byte of its scale: 2^((k - 128) / 8).
extern const std::array<float, 256> kLogScales;

// The levels of codes of 1 to 4 bits that are greater than 0, in ascending order, by bits. The codes from
// 2^(bits - 1) on stand for them, the codes below for their negatives.
constexpr std::array<std::array<uint8_t, 8>, 5> kPositiveLevels = {
    {{}, {127}, {38, 127}, {14, 44, 79, 127}, {6, 18, 30, 43, 58, 75, 96, 127}}};

// Returns the level of a code.
constexpr int code_level(int bits, int code) {
  if (bits > 4) return (256 >> bits) * code + (256 >> bits) / 2 - 128;
  const int half = 1 << (bits - 1);
  const auto& levels = kPositiveLevels[static_cast<size_t>(bits)];
  return code >= half ? levels[static_cast<size_t>(code - half)] : -levels[static_cast<size_t>(half - 1 - code)];
}

}  // namespace smartkv::kernels
