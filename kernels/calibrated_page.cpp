#include "kernels/calibrated_page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cpu_kernels.h"
#include "kernels/kv_backend.h"

namespace smartkv::kernels {

const std::array<float, 256> kLogScales = [] {
  std::array<float, 256> scales;
  for (int k = 0; k <= kMostScale; ++k) scales[static_cast<size_t>(k)] = static_cast<float>(std::exp2((k - 128) / 8.0));
  scales[kMostScale + 1] = std::numeric_limits<float>::quiet_NaN();
  return scales;
}();

namespace {

constexpr int64_t kQuadCodes = 4 * kPageTokens;
constexpr int64_t kGroupQuads = 4;  // quads of V whose codes share blocks

// Returns the byte of the least scale that is not below `top`.
int scale_above(float top) {
  const auto end = kLogScales.begin() + kMostScale;
  return static_cast<int>(std::lower_bound(kLogScales.begin(), end, top) - kLogScales.begin());
}

CodeLine uniform_line(int bits, float scale) {
  const float step = scale / 127.0f;
  return {step * static_cast<float>(256 >> bits), step * static_cast<float>(code_level(bits, 0)),
          static_cast<float>((1 << bits) - 1)};
}

// Returns the byte of the scale with the least error for a column, f32 [n].
int best_scale(const float* x, int64_t n, int bits) {
  const ElementwiseKernels& kernels = *cpu_kernels().elementwise;
  const CodeLine plain{1.0f, 0.0f, 0.0f};  // codes of 0
  const float squares = kernels.measure_codes(x, n, plain).error;
  if (!std::isfinite(squares)) {
    throw std::invalid_argument("calibrated page: expected finite values, found NaN, infinity or an overflow");
  }
  const auto error = [&](int k) {
    const float scale = kLogScales[static_cast<size_t>(k)];
    return bits > 4 ? kernels.measure_codes(x, n, uniform_line(bits, scale)).error
                    : kernels.measure_levels(x, n, bits, scale);
  };
  float top = std::sqrt(squares / static_cast<float>(n)) * (bits > 4 ? 1.0f : normal_top(bits));
  if (bits > 4) {
    const Range range = kernels.range(x, n);
    top = std::max(range.high, -range.low);
  }
  int best = scale_above(top);
  float least = error(best);
  for (const int step : {-1, 1}) {
    const int start = best;
    for (int i = 0; i < kMostScaleSteps && best + step >= 0 && best + step <= kMostScale; ++i) {
      const float trial = error(best + step);
      if (!(trial < least)) break;
      least = trial;
      best += step;
    }
    if (best != start) break;  // the error has one minimum
  }
  return best;
}

// Computes the codes of a column, f32 [n], at the scale with byte k.
void encode_column(const float* x, int64_t n, int bits, int k, uint8_t* codes) {
  const ElementwiseKernels& kernels = *cpu_kernels().elementwise;
  const float scale = kLogScales[static_cast<size_t>(k)];
  if (bits > 4) {
    kernels.encode(x, n, uniform_line(bits, scale), codes);
  } else {
    kernels.encode_levels(x, n, bits, scale, codes);
  }
}

// Stores the scales of a group of 16 columns, given their bytes.
void store_tier_scales(const int* best, uint8_t* group) {
  const int most = *std::max_element(best, best + 16);
  group[0] = static_cast<uint8_t>(most);
  for (int64_t c = 0; c < 16; ++c) {
    const int steps = tier_scale_steps(most, best[c]);
    uint8_t& byte = group[1 + c / 2];
    byte = static_cast<uint8_t>(c % 2 == 0 ? steps : byte | steps << 4);
  }
}

// Packs the planes of 256 codes. Returns the end of what it wrote: 32 bits bytes.
uint8_t* pack(const uint8_t* codes, int bits, uint8_t* out) {
  if (bits == 8) return std::copy_n(codes, kQuadCodes, out);
  int shift = 0;
  if (bits >= 4) {
    for (int64_t i = 0; i < 128; ++i) {
      const uint8_t* const of = codes + i / 64 * 128 + i % 64;
      *out++ = static_cast<uint8_t>((of[0] & 15) | (of[64] & 15) << 4);
    }
    shift = 4;
  }
  if ((bits - shift) & 2) {
    for (int64_t i = 0; i < 64; ++i) {
      int byte = 0;
      for (int64_t s = 0; s < 4; ++s) byte |= (codes[64 * s + i] >> shift & 3) << (2 * s);
      *out++ = static_cast<uint8_t>(byte);
    }
    shift += 2;
  }
  if ((bits - shift) & 1) {
    for (int64_t i = 0; i < 32; ++i) {
      int byte = 0;
      for (int64_t b = 0; b < 8; ++b) byte |= (codes[8 * i + b] >> shift & 1) << b;
      *out++ = static_cast<uint8_t>(byte);
    }
  }
  return out;
}

const uint8_t* unpack(const uint8_t* in, int bits, uint8_t* codes) {
  if (bits == 8) {
    std::copy_n(in, kQuadCodes, codes);
    return in + kQuadCodes;
  }
  std::fill_n(codes, kQuadCodes, uint8_t{0});
  int shift = 0;
  const auto add = [&](int64_t c, int code) { codes[c] = static_cast<uint8_t>(codes[c] | code << shift); };
  if (bits >= 4) {
    for (int64_t c = 0; c < kQuadCodes; ++c) add(c, in[c / 128 * 64 + c % 64] >> (4 * (c / 64 % 2)) & 15);
    in += 128;
    shift = 4;
  }
  if ((bits - shift) & 2) {
    for (int64_t c = 0; c < kQuadCodes; ++c) add(c, in[c % 64] >> (2 * (c / 64)) & 3);
    in += 64;
    shift += 2;
  }
  if ((bits - shift) & 1) {
    for (int64_t c = 0; c < kQuadCodes; ++c) add(c, in[c / 8] >> (c % 8) & 1);
    in += 32;
  }
  return in;
}

// The slots of one tier of a page: all, or with two tiers [first, end), multiples of 16.
struct TierSlots {
  const QuadWidths& quads;
  int64_t first = 0, end = kPageTokens;
  bool tiers = false;
};

TierSlots narrow_tier(const WidthTable& table, const ChannelWidths& side) {
  return {side.quads, table.wide_tokens, kPageTokens, table.wide_tokens > 0};
}
TierSlots wide_tier(const WidthTable& table, const ChannelWidths& side) {
  return {side.wide_quads, 0, table.wide_tokens, true};
}

// Calls block(column, bits, place) for each block of codes. Column c of a block's quads, counted from `column`, and
// slot t have code place(c, t), which is negative if they are not in this block.
template <typename Function>
void for_each_block(const TierSlots& tier, bool is_k, const Function& block) {
  int64_t column = 0;
  for (size_t run = 0; run < kWidths.size(); ++run) {
    int64_t quads = tier.quads[run];
    const bool grouped = tier.tiers || !is_k;
    for (; grouped && quads >= kGroupQuads; quads -= kGroupQuads, column += 4 * kGroupQuads) {
      for (int64_t i = tier.first / 16; i < tier.end / 16; ++i) {
        block(column, 4 * kGroupQuads, kWidths[run], [i, is_k](int64_t c, int64_t t) {
          if (t / 16 != i) return int64_t{-1};
          return is_k ? c / 4 * 64 + t % 16 * 4 + c % 4 : t % 16 / 4 * 64 + 4 * c + t % 4;
        });
      }
    }
    for (; quads > 0; --quads, column += 4) {
      block(column, int64_t{4}, kWidths[run],
            [is_k](int64_t c, int64_t t) { return is_k ? 4 * t + c : t / 4 * 16 + 4 * c + t % 4; });
    }
  }
}

// x: f32 [columns with codes, kPageTokens], in the order of the table and of the slots.
void encode_side(const TierSlots& tier, bool is_k, const float* x, uint8_t* scales, uint8_t* out) {
  std::vector<uint8_t> codes(static_cast<size_t>(4 * coded_quads(tier.quads) * kPageTokens));
  const int64_t n = tier.end - tier.first;
  int64_t column = 0;
  int best[16];
  for (size_t run = 0; run < kWidths.size(); ++run) {
    for (int64_t c = 0; c < 4 * tier.quads[run]; ++c, ++column) {
      const int64_t at = column * kPageTokens + tier.first;
      best[c % 16] = best_scale(x + at, n, kWidths[run]);
      if (!tier.tiers) {
        scales[column] = static_cast<uint8_t>(best[c % 16]);
        encode_column(x + at, n, kWidths[run], best[c % 16], codes.data() + at);
      } else if (c % 16 == 15) {
        store_tier_scales(best, scales + column / 16 * tier_scale_bytes(4));
        for (int64_t i = column - 15; i <= column; ++i) {
          const int64_t of = i * kPageTokens + tier.first;
          encode_column(x + of, n, kWidths[run], tier_scale(scales, i), codes.data() + of);
        }
      }
    }
  }
  for_each_block(tier, is_k, [&](int64_t first, int64_t columns, int bits, const auto& place) {
    uint8_t block[kQuadCodes];
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t t = 0; t < kPageTokens; ++t) {
        const int64_t at = place(c, t);
        if (at >= 0) block[at] = codes[static_cast<size_t>((first + c) * kPageTokens + t)];
      }
    }
    out = pack(block, bits, out);
  });
}

// x: f32 [kPageTokens, head_dim]; adds the codes to what is there.
void decode_side(const TierSlots& tier, bool is_k, std::span<const uint8_t> order, const PageSlots& slots,
                 const uint8_t* scales, const uint8_t* in, int64_t head_dim, float* x) {
  for_each_block(tier, is_k, [&](int64_t first, int64_t columns, int bits, const auto& place) {
    uint8_t block[kQuadCodes];
    in = unpack(in, bits, block);
    for (int64_t c = 0; c < columns; ++c) {
      const int k = tier.tiers ? tier_scale(scales, first + c) : scales[first + c];
      const float scale = kLogScales[static_cast<size_t>(k)] / 127.0f;
      for (int64_t t = 0; t < kPageTokens; ++t) {
        const int64_t at = place(c, t);
        if (at < 0) continue;
        x[slots.token[static_cast<size_t>(t)] * head_dim + order[static_cast<size_t>(first + c)]] +=
            scale * static_cast<float>(code_level(bits, block[at]));
      }
    }
  });
}

// Calls function(d, offset) with the rotated mean of channel d at a token of the page.
template <typename Function>
void for_each_offset(const WidthTable& table, const ChannelWidths& k, const float* middle, int64_t token,
                     const Function& function) {
  const int64_t half = table.head_dim / 2;
  for (int64_t f = 0; f < half; ++f) {
    const float x = k.mean[static_cast<size_t>(f)], y = k.mean[static_cast<size_t>(f + half)];
    const float a = x * middle[f] - y * middle[half + f], b = y * middle[f] + x * middle[half + f];
    const float c = table.rotations->cos()[f * kPageTokens + token],
                s = table.rotations->sin()[f * kPageTokens + token];
    function(f, a * c - b * s);
    function(f + half, b * c + a * s);
  }
}

// Returns whether no quad has fewer bits in `wide` than in `narrow`, and all runs are groups.
bool tiers_fit(const QuadWidths& narrow, const QuadWidths& wide) {
  int64_t n = 0, w = 0;
  for (size_t run = 0; run < kWidths.size(); ++run) {
    n += narrow[run];
    w += wide[run];
    if (w < n || narrow[run] % kGroupQuads != 0 || wide[run] % kGroupQuads != 0) return false;
  }
  return true;
}

void check_side(const ChannelWidths& side, int64_t head_dim, int64_t wide_tokens) {
  std::vector<uint8_t> sorted = side.order;
  std::sort(sorted.begin(), sorted.end());
  bool fits = static_cast<int64_t>(sorted.size()) == head_dim && 4 * side.coded_quads() <= head_dim &&
              4 * coded_quads(side.wide_quads) <= head_dim && static_cast<int64_t>(side.mean.size()) == head_dim;
  fits = fits && (wide_tokens == 0 ? coded_quads(side.wide_quads) == 0 : tiers_fit(side.quads, side.wide_quads));
  for (int64_t d = 0; fits && d < head_dim; ++d) {
    fits = sorted[static_cast<size_t>(d)] == d && std::isfinite(side.mean[static_cast<size_t>(d)]);
  }
  if (!fits) {
    throw std::invalid_argument(
        "width table: expected at most " + std::to_string(head_dim / 4) + " quads with codes, each of the " +
        std::to_string(head_dim) +
        " channels once, and finite means; with two tiers, groups of 4 quads, none narrower for wide tokens");
  }
}

}  // namespace

int64_t coded_quads(const QuadWidths& quads) { return std::accumulate(quads.begin(), quads.end(), int64_t{0}); }

int64_t sum_of_bits(const QuadWidths& quads) {
  int64_t bits = 0;
  for (size_t run = 0; run < kWidths.size(); ++run) bits += quads[run] * kWidths[run];
  return bits;
}

int64_t ChannelWidths::coded_quads() const { return kernels::coded_quads(quads); }

PageSlots::PageSlots(uint64_t wide) {
  auto next = static_cast<uint8_t>(std::popcount(wide)), next_wide = uint8_t{0};
  for (uint8_t t = 0; t < kPageTokens; ++t) {
    uint8_t& at = (wide >> t & 1) != 0 ? next_wide : next;
    slot[t] = at;
    token[at++] = t;
  }
}

namespace {
const float* floats_of(const std::unique_ptr<PageMemory>& memory) {
  return memory == nullptr ? nullptr : reinterpret_cast<const float*>(std::as_const(*memory).data());
}
}  // namespace

PageRotations::PageRotations(int64_t head_dim, const Rope& rope, std::shared_ptr<KvBackend> backend)
    : half_(head_dim / 2), rope_(rope), backend_(std::move(backend)) {
  const auto half = static_cast<size_t>(half_), tokens = static_cast<size_t>(kPageTokens);
  within_ = AlignedBuffer(2 * half * tokens * sizeof(float));
  auto* const within = reinterpret_cast<float*>(within_.data());
  std::vector<float> zero(2 * half), cos(half), sin(half);
  rope_(0, zero.data(), zero.data() + half);  // the cosines are the factor of every rotation
  for (size_t t = 0; t < tokens; ++t) {
    const int64_t from_middle = static_cast<int64_t>(t) - kPageTokens / 2;
    rope_(std::abs(from_middle), cos.data(), sin.data());
    for (size_t f = 0; f < half; ++f) {
      within[f * tokens + t] = cos[f] / zero[f];
      within[(half + f) * tokens + t] = (from_middle < 0 ? -sin[f] : sin[f]) / zero[f];
    }
  }
  within_on_device_ = send({within, 2 * half * tokens});
}

PageRotations::~PageRotations() = default;

std::unique_ptr<PageMemory> PageRotations::send(std::span<const float> values) const {
  if (backend_ == nullptr) return nullptr;
  auto memory = std::make_unique<PageMemory>(backend_, values.size() * sizeof(float));
  backend_->upload(values.data(), memory->size(), memory->data());
  return memory;
}

const float* PageRotations::within_on_device() const { return floats_of(within_on_device_); }

MirroredFloats PageRotations::middle(int64_t page) const {
  const std::lock_guard lock(mutex_);
  while (std::ssize(middles_) * kChunk <= page) {
    Chunk chunk;
    chunk.host.resize(static_cast<size_t>(kChunk * 2 * half_));
    for (int64_t i = 0; i < kChunk; ++i) {
      float* const of = chunk.host.data() + i * 2 * half_;
      rope_((std::ssize(middles_) * kChunk + i) * kPageTokens + kPageTokens / 2, of, of + half_);
    }
    chunk.device = send(chunk.host);
    middles_.push_back(std::move(chunk));
  }
  const Chunk& chunk = middles_[static_cast<size_t>(page / kChunk)];
  const int64_t at = page % kChunk * 2 * half_;
  const float* const device = floats_of(chunk.device);
  return {chunk.host.data() + at, device == nullptr ? nullptr : device + at};
}

void WidthTable::lay_out() {
  if (head_dim <= 0 || head_dim % 16 != 0 || head_dim > 256) {
    throw std::invalid_argument("width table: head_dim must be a multiple of 16 up to 256, found " +
                                std::to_string(head_dim));
  }
  if (wide_tokens < 0 || wide_tokens >= kPageTokens || wide_tokens % 16 != 0) {
    throw std::invalid_argument("width table: wide_tokens must be 0, 16, 32 or 48, found " +
                                std::to_string(wide_tokens));
  }
  bytes = 0;
  for (HeadWidths& head : heads) {
    check_side(head.k, head_dim, wide_tokens);
    check_side(head.v, head_dim, wide_tokens);
    head.first = bytes;
    CalibratedOffsets& at = head.at;
    int64_t end = 0;
    const auto add = [&end](int64_t size) { return std::exchange(end, end + size); };
    const auto scale_bytes = [&](int64_t quads) { return wide_tokens > 0 ? tier_scale_bytes(quads) : 4 * quads; };
    at.k_scales = add(scale_bytes(coded_quads(head.k.quads)));
    at.v_scales = add(scale_bytes(coded_quads(head.v.quads)));
    at.wide.k_scales = add(scale_bytes(coded_quads(head.k.wide_quads)));
    at.wide.v_scales = add(scale_bytes(coded_quads(head.v.wide_quads)));
    at.mask = end;
    end = calibrated_codes_at(coded_quads(head.k.quads) + coded_quads(head.v.quads) + coded_quads(head.k.wide_quads) +
                                  coded_quads(head.v.wide_quads),
                              wide_tokens);
    const auto code_bytes = [](const QuadWidths& quads, int64_t tokens) { return sum_of_bits(quads) * tokens / 2; };
    at.k_codes = add(code_bytes(head.k.quads, kPageTokens - wide_tokens));
    at.v_codes = add(code_bytes(head.v.quads, kPageTokens - wide_tokens));
    at.wide.k_codes = add(code_bytes(head.k.wide_quads, wide_tokens));
    at.wide.v_codes = add(code_bytes(head.v.wide_quads, wide_tokens));
    at.total = end;
    bytes += at.total;
  }
}

double WidthTable::mean_bits(ChannelWidths HeadWidths::*side) const {
  int64_t bits = 0;
  for (const HeadWidths& head : heads) {
    bits += (kPageTokens - wide_tokens) * sum_of_bits((head.*side).quads) +
            wide_tokens * sum_of_bits((head.*side).wide_quads);
  }
  return static_cast<double>(4 * bits) / static_cast<double>(kPageTokens * head_dim * std::ssize(heads));
}

void WidthTable::send(const std::shared_ptr<KvBackend>& backend) {
  std::vector<std::byte> flat(static_cast<size_t>(kFlatHeads + std::ssize(heads) * flat_head_bytes(head_dim)));
  auto* out = flat.data();
  const auto add = [&](const auto& values) {
    const size_t size = values.size() * sizeof(values[0]);
    std::memcpy(out, values.data(), size);
    out += size;
  };
  add(kLogScales);
  std::array<float, kFlatLevels> levels = {};
  for (int bits = 1; bits <= 4; ++bits) {
    for (int code = 0; code < 1 << bits; ++code) {
      levels[static_cast<size_t>((1 << bits) - 2 + code)] = static_cast<float>(code_level(bits, code));
    }
  }
  add(levels);
  for (const HeadWidths& head : heads) {
    const auto tier = [](int64_t scales, int64_t codes, const QuadWidths& quads) {
      FlatTier result = {static_cast<int32_t>(scales), static_cast<int32_t>(codes), {}};
      std::copy(quads.begin(), quads.end(), result.quads);
      return result;
    };
    const CalibratedOffsets& of = head.at;
    const FlatWidths widths = {
        static_cast<int32_t>(head.first),
        static_cast<int32_t>(of.total),
        static_cast<int32_t>(wide_tokens),
        static_cast<int32_t>(of.mask),
        {tier(of.k_scales, of.k_codes, head.k.quads), tier(of.wide.k_scales, of.wide.k_codes, head.k.wide_quads)},
        {tier(of.v_scales, of.v_codes, head.v.quads), tier(of.wide.v_scales, of.wide.v_codes, head.v.wide_quads)}};
    add(std::span(&widths, 1));
    add(head.k.order);
    add(head.v.order);
    add(head.k.mean);
    add(head.v.mean);
  }
  auto memory = std::make_shared<PageMemory>(backend, flat.size());
  backend->upload(flat.data(), flat.size(), memory->data());
  on_device = std::move(memory);
}

void encode_calibrated(const WidthTable& table, int64_t head, const float* middle, const float* k, const float* v,
                       uint64_t wide, void* block) {
  if (std::popcount(wide) != table.wide_tokens) {
    throw std::invalid_argument("calibrated page: expected " + std::to_string(table.wide_tokens) +
                                " wide tokens, found " + std::to_string(std::popcount(wide)));
  }
  const HeadWidths& of = table.heads[static_cast<size_t>(head)];
  const int64_t dim = table.head_dim;
  const PageSlots slots(wide);
  std::vector<float> columns(static_cast<size_t>(dim * kPageTokens));
  std::vector<int64_t> place(static_cast<size_t>(dim));
  auto* const base = static_cast<uint8_t*>(block);
  const auto encode = [&](bool is_k, const TierOffsets& at, const TierSlots& tier) {
    encode_side(tier, is_k, columns.data(), base + (is_k ? at.k_scales : at.v_scales),
                base + (is_k ? at.k_codes : at.v_codes));
  };
  const auto encode_tiers = [&](const ChannelWidths& side, bool is_k) {
    encode(is_k, of.at, narrow_tier(table, side));
    if (table.wide_tokens > 0) encode(is_k, of.at.wide, wide_tier(table, side));
  };
  for (int64_t c = 0; c < dim; ++c) place[of.k.order[static_cast<size_t>(c)]] = c;
  for (int64_t t = 0; t < kPageTokens; ++t) {
    for_each_offset(table, of.k, middle, t, [&](int64_t d, float offset) {
      const int64_t column = place[static_cast<size_t>(d)];
      columns[static_cast<size_t>(column * kPageTokens + slots.slot[static_cast<size_t>(t)])] = k[t * dim + d] - offset;
    });
  }
  encode_tiers(of.k, true);
  for (int64_t c = 0; c < dim; ++c) {
    const int64_t d = of.v.order[static_cast<size_t>(c)];
    for (int64_t t = 0; t < kPageTokens; ++t) {
      columns[static_cast<size_t>(c * kPageTokens + slots.slot[static_cast<size_t>(t)])] =
          v[t * dim + d] - of.v.mean[static_cast<size_t>(d)];
    }
  }
  encode_tiers(of.v, false);
  if (table.wide_tokens > 0) std::memcpy(base + of.at.mask, &wide, sizeof wide);
}

uint64_t wide_tokens_of(const WidthTable& table, const HeadWidths& head, const void* block) {
  uint64_t wide = 0;
  if (table.wide_tokens > 0) std::memcpy(&wide, static_cast<const uint8_t*>(block) + head.at.mask, sizeof wide);
  return wide;
}

void decode_calibrated(const WidthTable& table, int64_t head, const float* middle, const void* block, float* k,
                       float* v) {
  const HeadWidths& of = table.heads[static_cast<size_t>(head)];
  const int64_t dim = table.head_dim;
  const auto* const base = static_cast<const uint8_t*>(block);
  const PageSlots slots(wide_tokens_of(table, of, block));
  const auto decode = [&](const ChannelWidths& side, bool is_k, const TierOffsets& at, const TierSlots& tier) {
    decode_side(tier, is_k, side.order, slots, base + (is_k ? at.k_scales : at.v_scales),
                base + (is_k ? at.k_codes : at.v_codes), dim, is_k ? k : v);
  };
  const auto decode_tiers = [&](const ChannelWidths& side, bool is_k) {
    decode(side, is_k, of.at, narrow_tier(table, side));
    if (table.wide_tokens > 0) decode(side, is_k, of.at.wide, wide_tier(table, side));
  };
  if (k != nullptr) {
    for (int64_t t = 0; t < kPageTokens; ++t) {
      for_each_offset(table, of.k, middle, t, [&](int64_t d, float offset) { k[t * dim + d] = offset; });
    }
    decode_tiers(of.k, true);
  }
  if (v == nullptr) return;
  for (int64_t t = 0; t < kPageTokens; ++t) std::copy_n(of.v.mean.data(), dim, v + t * dim);
  decode_tiers(of.v, false);
}

}  // namespace smartkv::kernels
