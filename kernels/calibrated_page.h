// A calibrated page: kPageTokens tokens of one layer, all KV heads, in which each quad of four channels has a width of
// its own. A table of the model gives the widths, so all pages of a layer have the same bytes.
//
// Codes stand for what is left after an offset is taken away: the rotated mean of the keys, and the mean of the values.
//   key d of token t:    (R_t mu_K)[d] + s_d level(c) / 127      R_t: the rotation of RoPE at the token's position
//   value d of token t:  mu_V[d] + s_d level(c) / 127
// A column is a channel over the page's 64 tokens. Its scale is one byte k: s = 2^((k - 128) / 8); 255 stands for NaN,
// a column with a value that is not finite. Levels are integers from -128 to 127, so products with them run over bytes.
// Up to 4 bits they are symmetric and have the least squared error for a normal distribution (Max 1960), from 5 bits on
// they are uniform.
//
// Each KV head has a block of bytes, in contiguous parts (K', V': channels of K and V that have codes):
//   scales of K [K'], scales of V [V'], in the order of the table; up to the next multiple of 64; codes of K, codes of
//   V
// Both sides have their quads in runs, widest first. A block holds 256 codes:
//   K: a quad, 64 tokens x 4 channels: code 4 t + channel
//   V: 4 quads of a run, 16 channels: block i of four holds tokens [16 i, 16 i + 16), code 64 (t % 16 / 4) + 4 channel
//   +
//      t % 4. The last quads of a run, fewer than 4, have a block each: code 16 (t / 4) + 4 channel + t % 4.
// A table may have two tiers. Then `wide_tokens` tokens of each page have wider codes than the others; each KV head
// chooses its own. The slots of a page are its tokens in another order: first the wide ones, then the others, each in
// order of position. A column is a channel over the tokens of one tier. The block of a KV head has
//   scales of K, then of V, of the narrow tier; the same of the wide tier; a mask of 64 bits (little endian), in which
//   bit t says that token t is wide; up to the next multiple of 32; codes of K, then of V, of the narrow tier; the same
//   of the wide tier
// Widths come in groups of 4 quads, whose scales take 9 bytes: the byte k of the greatest one, and in 4 bits each, the
// first column of a byte lowest, how many steps of kTierScaleStep the others lie below it. A block of 256 codes holds
// 16 slots of a group: code 64 quad + 4 (slot % 16) + channel of K, and for V as above, with slots for tokens.
//
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

#include "kernels/aligned_buffer.h"
#include "kernels/attention.h"
#include "kernels/rounded.h"

namespace smartkv::kernels {

class KvBackend;
class PageMemory;

constexpr std::array<int, 7> kWidths = {8, 6, 5, 4, 3, 2, 1};

using QuadWidths = std::array<uint8_t, kWidths.size()>;  // number of quads of each width

// The channels of K or of V of one KV head.
struct ChannelWidths {
  QuadWidths quads = {};       // the others have no codes
  QuadWidths wide_quads = {};  // with two tiers, those of the wide tokens, where no quad has fewer bits
  std::vector<uint8_t> order;  // channels in the order of their quads: [head_dim]
  std::vector<float> mean;     // mu, in natural order: [head_dim]. K: before RoPE

  int64_t coded_quads() const;
};
int64_t coded_quads(const QuadWidths& quads);
int64_t sum_of_bits(const QuadWidths& quads);  // of the widths of all quads

// Offsets into the block of a KV head, in bytes.
struct TierOffsets {
  int64_t k_scales = 0, v_scales = 0, k_codes = 0, v_codes = 0;
};
// Begins with those of the only tier or of the narrow one. The total is a multiple of 32.
struct CalibratedOffsets : TierOffsets {
  TierOffsets wide;
  int64_t mask = 0, total = 0;
};

// Returns the bytes of the scales of a tier's quads.
SMARTKV_HOST_DEVICE constexpr int64_t tier_scale_bytes(int64_t quads) { return quads / 4 * 9; }

// Returns where the codes begin in the block of a KV head whose tiers have scales for this many quads.
constexpr int64_t calibrated_codes_at(int64_t quads, int64_t wide_tokens) {
  if (wide_tokens == 0) return (4 * quads + 63) / 64 * 64;
  return (tier_scale_bytes(quads) + kPageTokens / 8 + 31) / 32 * 32;
}

// Returns the bytes of the block of a KV head: of `coded` quads with codes, whose widths add up to `bits`. With two
// tiers these are those of the narrow one; wide_coded and wide_bits are those of the wide one.
constexpr int64_t calibrated_block_bytes(int64_t coded, int64_t bits, int64_t wide_tokens = 0, int64_t wide_coded = 0,
                                         int64_t wide_bits = 0) {
  return calibrated_codes_at(coded + wide_coded, wide_tokens) +
         ((kPageTokens - wide_tokens) * bits + wide_tokens * wide_bits) / 2;
}

struct HeadWidths {
  ChannelWidths k, v;
  int64_t first = 0;  // where the block begins in a page, in bytes
  CalibratedOffsets at;
};

// The rotations of RoPE that calibrated pages need. Thread-safe.
class PageRotations {
 public:
  using Rope = std::function<void(int64_t position, float* cos, float* sin)>;  // as PolicyContext::rope
  // If `backend` is null, there is nothing on a device.
  PageRotations(int64_t head_dim, const Rope& rope, std::shared_ptr<KvBackend> backend);
  ~PageRotations();
  PageRotations(const PageRotations&) = delete;
  PageRotations& operator=(const PageRotations&) = delete;

  // Cosine and sine of the angle between a page's middle, token kPageTokens / 2, and each of its tokens:
  // f32 [head_dim / 2, kPageTokens].
  const float* cos() const { return within(); }
  const float* sin() const { return within() + half_ * kPageTokens; }
  const float* within_on_device() const;  // cosines, then sines
  // Cosines and sines at the middle of page i of a sequence: f32 [2, head_dim / 2]. Valid as long as this object.
  MirroredFloats middle(int64_t page) const;
  int64_t half() const { return half_; }

 private:
  // The middles of kChunk pages, so that few copies to the device are made.
  static constexpr int64_t kChunk = 64;
  struct Chunk {
    std::vector<float> host;
    std::unique_ptr<PageMemory> device;
  };
  std::unique_ptr<PageMemory> send(std::span<const float> values) const;
  const float* within() const { return reinterpret_cast<const float*>(within_.data()); }

  int64_t half_;
  Rope rope_;
  std::shared_ptr<KvBackend> backend_;
  AlignedBuffer within_;  // cosines, then sines
  std::unique_ptr<PageMemory> within_on_device_;
  mutable std::mutex mutex_;
  mutable std::deque<Chunk> middles_;
};

// A HeadWidths as the kernels of a device read it, followed by
//   u8 order of K [head_dim], u8 order of V [head_dim], f32 mean of K [head_dim], f32 mean of V [head_dim]
struct FlatTier {
  int32_t scales, codes;
  uint8_t quads[8];  // the last one is unused
};
struct FlatWidths {
  int32_t first, total, wide_tokens, mask;
  FlatTier k[2], v[2];  // of the only tier or the narrow one, then of the wide one
};
// WidthTable::on_device: f32 kLogScales, f32 levels, then all heads. The levels of codes of `bits` bits begin at
// 2^bits - 2.
constexpr int64_t kFlatLevels = 32;
constexpr int64_t kFlatHeads = (256 + kFlatLevels) * 4;
SMARTKV_HOST_DEVICE constexpr int64_t flat_head_bytes(int64_t head_dim) {
  return static_cast<int64_t>(sizeof(FlatWidths)) + 10 * head_dim;
}

// The widths of one layer.
struct WidthTable {
  int64_t head_dim = 0;
  int64_t wide_tokens = 0;  // of a page with two tiers: 16, 32 or 48; else 0
  std::vector<HeadWidths> heads;
  std::shared_ptr<const PageRotations> rotations;
  int64_t bytes = 0;                            // of a page
  std::shared_ptr<const PageMemory> on_device;  // for kernels of a device, see FlatWidths

  // Sets `first`, `at` and `bytes`. Throws std::invalid_argument if head_dim, the number of quads, an order or a mean
  // does not fit.
  void lay_out();
  double mean_bits(
      ChannelWidths HeadWidths::*side) const;            // bits of a code, averaged over KV heads, channels and tokens
  void send(const std::shared_ptr<KvBackend>& backend);  // sets on_device. REQUIRES: lay_out() was called
};

// Quantizes one KV head. k, v: f32 [kPageTokens, head_dim], K after RoPE; middle: PageRotations::middle() of the page;
// wide: the mask of the wide tokens, or 0 with one tier; block: at.total bytes. Throws std::invalid_argument if a value
// is not finite, or if `wide` does not have wide_tokens bits.
void encode_calibrated(const WidthTable& table, int64_t head, const float* middle, const float* k, const float* v,
                       uint64_t wide, void* block);

// Returns the mask of the wide tokens in a KV head's block; 0 with one tier.
uint64_t wide_tokens_of(const WidthTable& table, const HeadWidths& head, const void* block);

// The token of each slot of a page with two tiers, and the slot of each token. With one tier they are the same.
struct PageSlots {
  std::array<uint8_t, kPageTokens> token, slot;
  explicit PageSlots(uint64_t wide);
};

// Reads a block back. k, v: f32 [kPageTokens, head_dim], K after RoPE.
void decode_calibrated(const WidthTable& table, int64_t head, const float* middle, const void* block, float* k,
                       float* v);

// The search for a scale begins at the greatest level for values of variance 1, by bits of at most 4. A step changes
// the scale by 9 %.
SMARTKV_HOST_DEVICE constexpr float normal_top(int bits) {
  return bits == 1 ? 0.799f : bits == 2 ? 1.512f : bits == 3 ? 2.156f : 2.749f;
}
constexpr int kMostScale = 254, kMostScaleSteps = 16;

// The greatest value of a column, by the byte of its scale: 2^((k - 128) / 8), or NaN.
extern const std::array<float, 256> kLogScales;

// Two tiers: a step of the 4 bits of a scale, in steps of its byte.
constexpr int kTierScaleStep = 3;

// Returns how many steps a scale with byte k is stored below the greatest one of its group, and the byte that this
// stands for.
SMARTKV_HOST_DEVICE constexpr int tier_scale_steps(int most, int k) {
  const int steps = (most - k + kTierScaleStep / 2) / kTierScaleStep;
  return steps < 15 ? steps : 15;
}
SMARTKV_HOST_DEVICE constexpr int tier_scale_below(int most, int steps) {
  const int k = most - kTierScaleStep * steps;
  return k > 0 ? k : 0;
}

// Returns the byte of the scale of column c; scales: of all columns of a tier.
SMARTKV_HOST_DEVICE constexpr int tier_scale(const uint8_t* scales, int64_t c) {
  const uint8_t* const group = scales + c / 16 * tier_scale_bytes(4);
  return tier_scale_below(group[0], group[1 + c % 16 / 2] >> (4 * (c % 2)) & 15);
}

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

// The levels + 128 of codes of up to 4 bits, for byte shuffles.
template <int Bits>
alignas(16) constexpr std::array<uint8_t, 16> kLevelBytes = [] {
  std::array<uint8_t, 16> bytes{};
  for (int c = 0; c < 16; ++c)
    bytes[static_cast<size_t>(c)] = static_cast<uint8_t>(code_level(Bits, c % (1 << Bits)) + 128);
  return bytes;
}();

}  // namespace smartkv::kernels
