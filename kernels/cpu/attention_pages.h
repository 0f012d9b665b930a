// One page of any format against a block of query rows: scores, online softmax, values. Include after one
// vec16_codes_*.h. Everything has internal linkage.
//
// A block is a matrix of query rows (queries times the heads that share one KV head). Rows never mix, and every sum of
// a row has a fixed order. So the bits of a row do not depend on its block.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/attention_kernels.h"
#include "kernels/cpu/attention_codes.h"
#include "kernels/cpu/attention_dense.h"
#include "kernels/cpu/vec16_math.h"

namespace smartkv::kernels {
namespace {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kNoMaximum = -1e30f;  // Maximum of no tokens. Finite, so that differences are finite.
constexpr float kUnseen = -1e37f;     // Score of a token that a row does not see. Its weight is 0 even with kNoMaximum.

constexpr int64_t kDenseRun = 2 * whole_steps(8);  // Slots that a product with V in bf16 reads together.

// Load and store 16 values of f32 or bf16.
inline Vec16 load(const float* from) { return Vec16::load(from); }
inline Vec16 load(const uint16_t* from) { return Vec16::load_bf16(from); }
inline void store(Vec16 x, float* to) { x.store(to); }
inline void store(Vec16 x, uint16_t* to) { x.store_bf16(to); }

// Where one KV head of a segment lies.
struct Page {
  const KvSegment* segment = nullptr;
  const char* k = nullptr;  // For quantized pages, the block of the head.
  const char* v = nullptr;
  const float* bias = nullptr;           // [kPageTokens]
  QuantizedOffsets at = {};              // For quantized pages.
  const uint8_t* order = nullptr;        // Order of K's channels. Not for kDense.
  const uint8_t* value_order = nullptr;  // Order of V's channels. For kCut.
  const HeadWidths* widths = nullptr;    // For kCalibrated.

  const uint16_t* halves(int64_t offset) const { return reinterpret_cast<const uint16_t*>(k + offset); }
  const uint8_t* codes(int64_t offset) const { return reinterpret_cast<const uint8_t*>(k + offset); }
};

inline Page page_of(const AttentionShape& shape, const KvSegment& segment, int64_t kv_head) {
  Page page;
  page.segment = &segment;
  if (segment.format == KvSegment::Format::kCalibrated) {
    page.widths = &segment.table->heads[static_cast<size_t>(kv_head)];
    page.k = static_cast<const char*>(segment.k) + page.widths->first;
    return page;
  }
  page.k = static_cast<const char*>(segment.k) + kv_head * segment.head_stride;
  page.v = static_cast<const char*>(segment.v) + kv_head * segment.head_stride;
  if (segment.bias != nullptr) page.bias = segment.bias + kv_head * kPageTokens;
  const bool coded = segment.format == KvSegment::Format::kQuantized || segment.is_indexed();
  if (coded) page.at = quantized_offsets(segment.quantized, shape.head_dim);
  if (segment.channel_order != nullptr) page.order = segment.channel_order + kv_head * shape.head_dim;
  if (segment.value_order != nullptr) page.value_order = segment.value_order + kv_head * shape.head_dim;
  return page;
}

template <typename T>
struct Block {
  Block(const AttentionShape& of, int64_t n) : shape(of), rows(n), dim(of.head_dim), wide(block_rows(dim)) {}

  const AttentionShape& shape;
  const int64_t rows, dim;
  const int64_t wide;  // Width of a row in products with codes: head_dim in whole blocks.
  const float* query[kMaxBlockRows];

  // Scratch.
  alignas(64) T q[kMaxBlockRows * kMaxHeadDim];
  alignas(64) float s[kMaxBlockRows * kPageTokens];  // scores, then probabilities
  alignas(64) T p[kMaxBlockRows * kPageTokens];
  alignas(64) float o[kMaxBlockRows * kMaxHeadDim];  // [rows][wide]
  alignas(64) float l[kMaxBlockRows * 16];
  float m[kMaxBlockRows];
  alignas(64) T v[kDenseRun * kMaxHeadDim];  // The last slots of a dense page, with zeros past its tokens.

  // For quantized pages: the queries in the channel order of the page, and further below the columns, weights and bytes
  // of the present product.
  alignas(64) float ordered_q[kMaxBlockRows * kMaxHeadDim];
  const uint8_t* order = nullptr;
  bool ordered = false;
  // For cut pages: the first cut_channels of ordered_q, [rows][cut_channels], and the output of the page's values.
  alignas(64) T cut_q[kMaxBlockRows * kMaxHeadDim];
  alignas(64) float cut_o[kMaxBlockRows * kMaxHeadDim];
  const uint8_t* cut_order = nullptr;
  int64_t cut_channels = 0;
  // For calibrated pages: the output of their values without the means, in the channel order of `table`, [rows][wide],
  // and the sums of their probabilities, [rows][16].
  const WidthTable* table = nullptr;
  alignas(64) float coded_o[kMaxBlockRows * kMaxHeadDim];
  alignas(64) float coded_l[kMaxBlockRows * 16];
  alignas(64) T dense[kPageTokens * kMaxHeadDim];  // a page's keys or values
  alignas(64) float scales[kMaxHeadDim], zeros[kMaxHeadDim];
  alignas(64) float wide_scales[kMaxHeadDim];  // of the wide tokens of a page with two tiers
  float steps[kMaxBlockRows], offsets[kMaxBlockRows];
  alignas(64) uint8_t weights[2 * kMaxBlockRows * kMaxHeadDim];
  alignas(64) uint8_t bytes[kPageTokens * kMaxHeadDim];
};

// The rows of an item lie member after member. Row r of a member belongs to query item.query + r / item.n_heads and
// head first_head() + r % item.n_heads.
inline int64_t member_rows(const AttentionScratch::Item& item) { return int64_t{item.n_queries} * item.n_heads; }
inline int64_t rows_of(const AttentionScratch::Item& item) { return item.n_members * member_rows(item); }

inline int64_t first_head(const AttentionShape& shape, const AttentionScratch::Item& item) {
  return item.kv_head * (shape.n_heads / shape.n_kv_heads) + item.head;
}

// Loads the queries of an item. task_of(i) returns the task of the item's member i.
template <typename T, typename TaskOf>
void load_queries(const TaskOf& task_of, const AttentionScratch::Item& item, Block<T>& block) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const auto& task = task_of(r / member_rows(item));
    const int64_t row = r % member_rows(item);
    const float* q = task.q + (item.query + row / item.n_heads) * task.q_stride +
                     (first_head(block.shape, item) + row % item.n_heads) * block.dim;
    block.query[r] = q;
    for (int64_t d = 0; d < block.dim; d += 16) store(Vec16::load(q + d), block.q + r * block.dim + d);
  }
}

// The kernels of each format. next: the page that follows, or null; groups: groups of 16 tokens that some row sees.

template <typename T>
const T* dense_k(const Page* page) {
  if (page == nullptr || page->segment->format != KvSegment::Format::kDense) return nullptr;
  return reinterpret_cast<const T*>(page->k);
}

template <typename T>
void dense_scores(Block<T>& block, const Page& page, const Page* next, int64_t groups) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  dense_product<T>(block.rows, groups, block.q, block.dim, reinterpret_cast<const T*>(page.k), kPageTokens * kStep,
                   block.dim / kStep, block.s, kPageTokens, false, dense_k<T>(next));
}

// Copies V of the last slots [from, from + kDenseRun) of a page, with zeros past the page's tokens. Their probabilities
// are 0, but the slots may hold NaN.
template <typename T>
const T* last_values(Block<T>& block, const T* v, int64_t tokens, int64_t from) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const int64_t row = block.dim * kStep, rows = (tokens - from) / kStep;  // Rows of V hold kStep slots, interleaved.
  std::memcpy(block.v, v + from / kStep * row, static_cast<size_t>(rows * row) * sizeof(T));
  std::memset(block.v + rows * row, 0, static_cast<size_t>(kDenseRun / kStep - rows) * row * sizeof(T));
  if ((tokens - from) % kStep != 0) {
    const T* const odd = v + (tokens / kStep) * row;
    for (int64_t d = 0; d < row; d += kStep) block.v[rows * row + d] = odd[d];
  }
  return block.v;
}

// Returns the probabilities, [rows][kPageTokens], as products with V read them. Sets `slots` to the number of slots to
// multiply.
template <typename T>
const T* probabilities(Block<T>& block, int64_t groups, int64_t* slots) {
  *slots = 16 * groups;
  if constexpr (std::is_same_v<T, float>) {
    return block.s;
  } else {
    *slots = 2 * whole_steps(*slots / 2);
    for (int64_t r = 0; r < block.rows; ++r) {
      for (int64_t t = 0; t < *slots; t += 16) {
        const Vec16 x = t < 16 * groups ? Vec16::load(block.s + r * kPageTokens + t) : Vec16::zero();
        x.store_bf16(block.p + r * kPageTokens + t);
      }
    }
    return block.p;
  }
}

template <typename T>
void dense_values(Block<T>& block, const Page& page, const Page* next, int64_t groups) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  int64_t slots = 0;
  const T* const p = probabilities(block, groups, &slots);
  const T* const v = reinterpret_cast<const T*>(page.v);
  const T* next_v = dense_k<T>(next) == nullptr ? nullptr : reinterpret_cast<const T*>(next->v);
  const auto multiply = [&](int64_t first, const T* values, int64_t n) {
    dense_product<T>(block.rows, block.dim / 16, p + first, kPageTokens, values, block.dim * kStep, n / kStep, block.o,
                     block.wide, true, next_v == nullptr ? nullptr : next_v + first * block.dim);
  };
  const int64_t tokens = page.segment->tokens;
  if (slots <= tokens) return multiply(0, v, slots);
  const int64_t last = tokens / kDenseRun * kDenseRun;
  if (last > 0) multiply(0, v, last);
  multiply(last, last_values(block, v, tokens, last), slots - last);
}

template <typename T>
void order_queries(Block<T>& block, const uint8_t* order) {
  if (block.ordered && block.order == order) return;
  for (int64_t r = 0; r < block.rows; ++r) {
    float* const q = block.ordered_q + r * block.wide;
    for (int64_t d = 0; d < block.dim; ++d) q[d] = block.query[r][order == nullptr ? d : order[d]];
    for (int64_t d = block.dim; d < block.wide; ++d) q[d] = 0.0f;
  }
  block.ordered = true;
  block.order = order;
}

template <typename T>
void quantized_scores(Block<T>& block, const Page& page, const Page* next, int64_t) {
  const int64_t n = block.wide;
  const CodeRuns& runs = page.segment->quantized.k;
  order_queries(block, page.order);
  load_columns(runs, block.dim, page.halves(0), page.halves(page.at.k_zeros), block.scales, block.zeros);
  for (int64_t c = block.dim; c < n; ++c) block.scales[c] = block.zeros[c] = 0.0f;
  if (next != nullptr) {
    for (int64_t byte = 0; byte < next->at.k_codes; byte += 64) Vec16::prefetch(next->k + byte);
  }
  const uint8_t* bytes =
      decode(runs, page.codes(page.at.k_codes), next == nullptr ? nullptr : next->codes(next->at.k_codes), kPageTokens,
             n / 4, block.bytes);
  for (int64_t r = 0; r < block.rows; ++r) {
    make_weights(n, block.ordered_q + r * n, block.scales, block.zeros, block.weights + 2 * r * n, &block.steps[r],
                 &block.offsets[r]);
  }
  code_product({block.rows, n, block.weights, block.steps, block.offsets}, {bytes, runs.coded_quads(), n}, kPageTokens,
               block.s, kPageTokens, false);
}

template <typename T>
void quantized_values(Block<T>& block, const Page& page, const Page* next, int64_t) {
  constexpr int64_t kN = kPageTokens;
  const CodeRuns& runs = page.segment->quantized.v;
  load_columns(runs, kN, page.halves(page.at.v_scales), page.halves(page.at.v_zeros), block.scales, block.zeros);
  const uint8_t* bytes =
      decode(runs, page.codes(page.at.v_codes), next == nullptr ? nullptr : next->codes(next->at.v_codes), block.dim,
             kN / 4, block.bytes);
  for (int64_t r = 0; r < block.rows; ++r) {
    make_weights(kN, block.s + r * kN, block.scales, block.zeros, block.weights + 2 * r * kN, &block.steps[r],
                 &block.offsets[r]);
  }
  code_product({block.rows, kN, block.weights, block.steps, block.offsets}, {bytes, runs.coded_quads(), kN}, block.wide,
               block.o, block.wide, true);
}

// Stores the queries in the channel order of a page, the first n channels of them, to block.cut_q.
template <typename T>
void order_narrow_queries(Block<T>& block, const uint8_t* order, int64_t n) {
  if (block.cut_channels == n && block.cut_order == order) return;
  order_queries(block, order);
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t c = 0; c < n; c += 16)
      store(Vec16::load(block.ordered_q + r * block.wide + c), block.cut_q + r * n + c);
  }
  block.cut_channels = n;
  block.cut_order = order;
}

template <typename T>
void cut_scores(Block<T>& block, const Page& page, const Page*, int64_t groups) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const int64_t n = page.segment->k_channels;
  order_narrow_queries(block, page.order, n);
  dense_product<T>(block.rows, groups, block.cut_q, n, reinterpret_cast<const T*>(page.k), kPageTokens * kStep,
                   n / kStep, block.s, kPageTokens, false, nullptr);
}

template <typename T>
void cut_values(Block<T>& block, const Page& page, const Page*, int64_t groups) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const int64_t n = page.segment->v_channels;
  int64_t slots = 0;
  const T* const p = probabilities(block, groups, &slots);
  dense_product<T>(block.rows, n / 16, p, kPageTokens, reinterpret_cast<const T*>(page.v), n * kStep, slots / kStep,
                   block.cut_o, n, false, nullptr);
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* const from = block.cut_o + r * n;
    float* const o = block.o + r * block.wide;
    for (int64_t c = 0; c < n; ++c) o[page.value_order == nullptr ? c : page.value_order[c]] += from[c];
  }
}

// Load the scales of the columns that have codes, per unit of a level, and 0 for the others up to n: of a page, or of
// one of its tiers.
inline void load_log_scales(const QuadWidths& quads, const uint8_t* bytes, int64_t n, float* scales) {
  const int64_t coded = 4 * coded_quads(quads);
  for (int64_t c = 0; c < coded; ++c) scales[c] = kLogScales[bytes[c]] * (1.0f / 127.0f);
  for (int64_t c = coded; c < n; ++c) scales[c] = 0.0f;
}

inline void load_tier_scales(const QuadWidths& quads, const uint8_t* bytes, int64_t n, float* scales) {
  const int64_t coded = 4 * coded_quads(quads);
  for (int64_t c = 0; c < coded; ++c) {
    scales[c] = kLogScales[static_cast<size_t>(tier_scale(bytes, c))] * (1.0f / 127.0f);
  }
  for (int64_t c = coded; c < n; ++c) scales[c] = 0.0f;
}

// Returns the bytes at an offset into the block of the next page, if that is calibrated, too; else null.
inline const uint8_t* next_codes(const Page* next, int64_t offset) {
  return next == nullptr || next->widths == nullptr ? nullptr : next->codes(offset);
}

// Stores two rows of a dense page, as dense_product() reads them: of f32 `stride` floats apart, of bf16 in pairs.
inline void store_rows(Vec16 a, Vec16 b, float* to, int64_t stride) {
  a.store(to);
  b.store(to + stride);
}
inline void store_rows(Vec16 a, Vec16 b, uint16_t* to, int64_t) { Vec16::store_bf16_pairs(a, b, to); }

// The mean key of a KV head, rotated to the tokens of a page. Channel d of a token has along[d] cos + across[d] sin,
// with the cosine and sine that PageRotations has for frequency d % half. Both are 0 for channels without a mean.
struct RotatedMean {
  alignas(64) float along[kMaxHeadDim], across[kMaxHeadDim];

  RotatedMean(const std::vector<float>& mean, int64_t half, const float* middle) {
    for (int64_t f = 0; f < half; ++f) {
      const float x = mean[f], y = mean[half + f], c = middle[f], s = middle[half + f];
      along[f] = across[half + f] = x * c - y * s;
      along[half + f] = y * c + x * s;
      across[f] = -along[half + f];
    }
  }
};

// Writes the keys of a page with two tiers, in the channel order of its table, to block.dense.
template <typename T>
void decode_tiered_keys(Block<T>& block, const Page& page) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const WidthTable& table = *page.segment->table;
  const ChannelWidths& side = page.widths->k;
  const PageRotations& rotations = *table.rotations;
  const CalibratedOffsets& at = page.widths->at;
  const uint64_t wide = wide_tokens_of(table, *page.widths, page.k);
  const PageSlots slots(wide);
  load_tier_scales(side.quads, page.codes(at.k_scales), block.wide, block.scales);
  load_tier_scales(side.wide_quads, page.codes(at.wide.k_scales), block.wide, block.wide_scales);
  decode_tier_keys(side.quads, page.codes(at.k_codes), table.wide_tokens / 16, kPageTokens / 16, block.bytes);
  decode_tier_keys(side.wide_quads, page.codes(at.wide.k_codes), 0, table.wide_tokens / 16, block.bytes);
  alignas(64) float is_wide[kPageTokens];
  for (int64_t t = 0; t < kPageTokens; ++t) is_wide[t] = static_cast<float>(wide >> t & 1);
  const RotatedMean mean(side.mean, block.dim / 2, page.segment->middle.host);
  const int64_t coded = 4 * coded_quads(side.wide_quads);
  for (int64_t c = 0; c < block.dim; c += 4) {
    alignas(64) uint8_t bytes[4 * kPageTokens];  // in the order of the tokens
    if (c < coded) {
      for (int64_t t = 0; t < kPageTokens; ++t) {
        std::memcpy(bytes + 4 * t, block.bytes + c * kPageTokens + 4 * slots.slot[static_cast<size_t>(t)], 4);
      }
    }
    for (int64_t t = 0; t < kPageTokens; t += 16) {
      const Vec16 of_wide = Vec16::load(is_wide + t);
      Vec16 x[4];
      if (c < coded) spread_bytes(bytes + 4 * t, x);
      unrolled<4>([&](auto i) {
        const auto d = static_cast<int64_t>(side.order[static_cast<size_t>(c + i)]);
        if (c < coded) {
          const float narrow = block.scales[c + i], step = block.wide_scales[c + i] - narrow;
          const Vec16 scale = Vec16::fma(of_wide, Vec16::set1(step), Vec16::set1(narrow));
          x[i] = (x[i] - Vec16::set1(128.0f)) * scale;
        } else {
          x[i] = Vec16::zero();
        }
        if (mean.along[d] != 0 || mean.across[d] != 0) {
          const int64_t angle = (d < rotations.half() ? d : d - rotations.half()) * kPageTokens + t;
          x[i] = Vec16::fma(Vec16::load(rotations.cos() + angle), Vec16::set1(mean.along[d]), x[i]);
          x[i] = Vec16::fma(Vec16::load(rotations.sin() + angle), Vec16::set1(mean.across[d]), x[i]);
        }
      });
      T* const to = block.dense + c * kPageTokens + kStep * t;
      store_rows(x[0], x[1], to, kPageTokens);
      store_rows(x[2], x[3], to + 2 * kPageTokens, kPageTokens);
    }
  }
}

// Writes the keys of a page, in the channel order of its table, to block.dense.
template <typename T>
void decode_dense_keys(Block<T>& block, const Page& page, const Page* next) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const ChannelWidths& side = page.widths->k;
  const PageRotations& rotations = *page.segment->table->rotations;
  load_log_scales(side.quads, page.codes(page.widths->at.k_scales), block.wide, block.scales);
  if (const uint8_t* const scales = next_codes(next, 0)) {
    for (int64_t byte = 0; byte < page.widths->at.k_codes; byte += 64) Vec16::prefetch(scales + byte);
  }
  const int64_t codes = page.widths->at.k_codes, coded = 4 * side.coded_quads();
  decode_keys(side, page.codes(codes), next_codes(next, codes), block.bytes);
  const RotatedMean mean(side.mean, block.dim / 2, page.segment->middle.host);
  for (int64_t c = 0; c < block.dim; c += 4) {
    Vec16 scale[4], zero[4], along[4], across[4];
    const float *cos[4], *sin[4];
    bool any = false;
    unrolled<4>([&](auto i) {
      const auto d = static_cast<int64_t>(side.order[static_cast<size_t>(c + i)]);
      const int64_t frequency = d < rotations.half() ? d : d - rotations.half();
      scale[i] = Vec16::set1(block.scales[c + i]);
      zero[i] = scale[i] * Vec16::set1(-128.0f);
      along[i] = Vec16::set1(mean.along[d]);
      across[i] = Vec16::set1(mean.across[d]);
      cos[i] = rotations.cos() + frequency * kPageTokens;
      sin[i] = rotations.sin() + frequency * kPageTokens;
      any = any || mean.along[d] != 0 || mean.across[d] != 0;
    });
    const auto decode_quad = [&](auto is_coded, auto has_mean) {
      for (int64_t t = 0; t < kPageTokens; t += 16) {
        Vec16 x[4];
        if constexpr (is_coded) spread_bytes(block.bytes + c * kPageTokens + 4 * t, x);
        unrolled<4>([&](auto i) {
          x[i] = is_coded ? Vec16::fma(x[i], scale[i], zero[i]) : Vec16::zero();
          if constexpr (has_mean) {
            x[i] = Vec16::fma(Vec16::load(cos[i] + t), along[i], x[i]);
            x[i] = Vec16::fma(Vec16::load(sin[i] + t), across[i], x[i]);
          }
        });
        T* const to = block.dense + c * kPageTokens + kStep * t;
        store_rows(x[0], x[1], to, kPageTokens);
        store_rows(x[2], x[3], to + 2 * kPageTokens, kPageTokens);
      }
    };
    if (c < coded) {
      any ? decode_quad(std::true_type(), std::true_type()) : decode_quad(std::true_type(), std::false_type());
    } else {
      any ? decode_quad(std::false_type(), std::true_type()) : decode_quad(std::false_type(), std::false_type());
    }
  }
}

template <typename T>
void calibrated_scores(Block<T>& block, const Page& page, const Page* next, int64_t groups) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  order_narrow_queries(block, page.widths->k.order.data(), block.dim);
  page.segment->table->wide_tokens > 0 ? decode_tiered_keys(block, page) : decode_dense_keys(block, page, next);
  dense_product<T>(block.rows, groups, block.cut_q, block.dim, block.dense, kPageTokens * kStep, block.dim / kStep,
                   block.s, kPageTokens, false, nullptr);
}

// Adds the output of calibrated pages to that of the others.
template <typename T>
void add_coded_output(Block<T>& block, const ChannelWidths& side) {
  for (int64_t r = 0; r < block.rows; ++r) {
    float* const o = block.o + r * block.wide;
    const float* const from = block.coded_o + r * block.wide;
    const float mass = Vec16::load(block.coded_l + 16 * r).reduce_add();
    for (int64_t c = 0; c < block.dim; ++c) o[side.order[static_cast<size_t>(c)]] += from[c];
    for (int64_t d = 0; d < block.dim; ++d) o[d] += side.mean[static_cast<size_t>(d)] * mass;
  }
  block.table = nullptr;
}

// Decodes the values of slots [first, end) without their means from block.bytes to block.dense.
template <typename T>
void scale_values(Block<T>& block, const float* scales, int64_t width, int64_t first, int64_t end) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const int64_t n = block.wide;
  for (int64_t c = 0; c < width; c += 16) {
    const Vec16 scale = Vec16::load(scales + c), zero = scale * Vec16::set1(-128.0f);
    for (int64_t t = first; t < end; t += 4) {
      Vec16 x[4];
      spread_bytes(block.bytes + t * n + 4 * c, x);
      unrolled<4>([&](auto i) { x[i] = Vec16::fma(x[i], scale, zero); });
      T* const to = block.dense + t * width + kStep * c;
      store_rows(x[0], x[1], to, width);
      store_rows(x[2], x[3], to + 2 * width, width);
    }
  }
}

// Writes the values of a page without their means, in the channel order of its table, to block.dense: `width` channels.
template <typename T>
void decode_dense_values(Block<T>& block, const Page& page, const Page* next, int64_t width) {
  const ChannelWidths& side = page.widths->v;
  const int64_t n = block.wide, codes = page.widths->at.v_codes;
  load_log_scales(side.quads, page.codes(page.widths->at.v_scales), n, block.scales);
  decode_values(side, page.codes(codes), next_codes(next, codes), n, block.bytes);
  scale_values(block, block.scales, width, 0, kPageTokens);
}

// Does the same for a page with two tiers: the values are in the order of its slots. Brings the probabilities into this
// order.
template <typename T>
void decode_tiered_values(Block<T>& block, const Page& page, int64_t width, int64_t groups) {
  const WidthTable& table = *page.segment->table;
  const ChannelWidths& side = page.widths->v;
  const CalibratedOffsets& at = page.widths->at;
  const int64_t wide = table.wide_tokens, n = block.wide;
  load_tier_scales(side.quads, page.codes(at.v_scales), n, block.scales);
  load_tier_scales(side.wide_quads, page.codes(at.wide.v_scales), n, block.wide_scales);
  decode_tier_values(side.quads, page.codes(at.v_codes), wide / 16, kPageTokens / 16, n, block.bytes);
  decode_tier_values(side.wide_quads, page.codes(at.wide.v_codes), 0, wide / 16, n, block.bytes);
  scale_values(block, block.wide_scales, width, 0, wide);
  scale_values(block, block.scales, width, wide, kPageTokens);
  const PageSlots slots(wide_tokens_of(table, *page.widths, page.k));
  for (int64_t r = 0; r < block.rows; ++r) {
    float* const s = block.s + r * kPageTokens;
    float p[kPageTokens] = {};
    std::memcpy(p, s, static_cast<size_t>(16 * groups) * sizeof(float));
    for (int64_t i = 0; i < kPageTokens; ++i) s[i] = p[slots.token[static_cast<size_t>(i)]];
  }
}

template <typename T>
void calibrated_values(Block<T>& block, const Page& page, const Page* next, int64_t groups) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const bool tiers = page.segment->table->wide_tokens > 0;
  const int64_t n = block.wide, coded = coded_quads(tiers ? page.widths->v.wide_quads : page.widths->v.quads);
  const int64_t width = (4 * coded + 15) / 16 * 16;
  if (block.table == nullptr) {
    block.table = page.segment->table;
    std::memset(block.coded_o, 0, static_cast<size_t>(block.rows * n) * sizeof(float));
    std::memset(block.coded_l, 0, static_cast<size_t>(block.rows * 16) * sizeof(float));
  }
  tiers ? decode_tiered_values(block, page, width, groups) : decode_dense_values(block, page, next, width);
  if (tiers) groups = kPageTokens / 16;
  for (int64_t r = 0; r < block.rows; ++r) {
    Vec16 sum = Vec16::load(block.coded_l + 16 * r);
    for (int64_t t = 0; t < 16 * groups; t += 16) sum = sum + Vec16::load(block.s + r * kPageTokens + t);
    sum.store(block.coded_l + 16 * r);
  }
  int64_t slots = 0;
  const T* const p = probabilities(block, groups, &slots);
  dense_product<T>(block.rows, width / 16, p, kPageTokens, block.dense, width * kStep, slots / kStep, block.coded_o, n,
                   true, nullptr);
}

// The kernels of a format. There is one row per KvSegment::Format.
template <typename T>
struct FormatKernels {
  using Kernel = void (*)(Block<T>& block, const Page& page, const Page* next, int64_t groups);
  Kernel scores;  // s [rows][kPageTokens] = q k
  Kernel values;  // o [rows][wide] += p v, for the first head_dim values of a row
};

template <typename T>
constexpr FormatKernels<T> kFormatKernels[kSegmentFormats] = {
    {dense_scores<T>, dense_values<T>},
    {quantized_scores<T>, quantized_values<T>},
    // Scores of the index. Tokens of indexed pages are read from gathered dense pages: sparse_attention.cpp.
    {quantized_scores<T>, nullptr},
    {cut_scores<T>, cut_values<T>},
    {calibrated_scores<T>, calibrated_values<T>},
};

template <typename T>
const FormatKernels<T>& kernels_of(const Page& page) {
  return kFormatKernels<T>[static_cast<size_t>(page.segment->format)];
}

// The tokens [first[r], end[r]) that each row sees of a segment.
struct Visible {
  int32_t first[kMaxBlockRows], end[kMaxBlockRows];
  int32_t latest = 0;  // The greatest end.
  bool none = true;    // Whether no row sees any token.
};

// Returns what each row sees of a segment of `tokens` tokens. The block's first query sees `seen` tokens from the
// segment's start on. With a window, each query sees only the last `window` of the tokens that it would see. If an item
// has several members, they see all tokens.
inline Visible visible_tokens(const AttentionScratch::Item& item, int64_t seen, int64_t window, int32_t tokens) {
  Visible visible;
  if (seen >= tokens && (window == 0 || item.n_members > 1 || seen + item.n_queries - 1 <= window)) {
    for (int64_t r = 0; r < rows_of(item); ++r) {
      visible.first[r] = 0;
      visible.end[r] = tokens;
    }
    visible.latest = tokens;
    visible.none = tokens == 0;
    return visible;
  }
  const auto within = [&](int64_t n) { return static_cast<int32_t>(n < 0 ? 0 : n < tokens ? n : tokens); };
  for (int64_t r = 0; r < rows_of(item); ++r) {
    const int64_t n = seen + r / item.n_heads;
    visible.first[r] = window > 0 ? within(n - window) : 0;
    visible.end[r] = within(n);
    if (visible.end[r] > visible.latest) visible.latest = visible.end[r];
    visible.none = visible.none && visible.first[r] >= visible.end[r];
  }
  return visible;
}

// Caps the first 16 `groups` scores of each row. They have yet to be multiplied by the shape's scale.
template <typename T>
void cap_scores(Block<T>& block, int64_t groups) {
  const float bound = block.shape.soft_cap / block.shape.scale;
  const Vec16 most = Vec16::set1(bound), inverse = Vec16::set1(1.0f / bound);
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t t = 0; t < 16 * groups; t += 16) {
      float* s = block.s + r * kPageTokens + t;
      (tanh(Vec16::load(s) * inverse) * most).store(s);
    }
  }
}

// Computes block.s = q k + bias / scale for a page, with kUnseen where a row does not see the token.
template <typename T>
void page_scores(Block<T>& block, const Page& page, const Page* next, const Visible& visible, int64_t groups) {
  kernels_of<T>(page).scores(block, page, next, groups);
  if (block.shape.soft_cap > 0) cap_scores(block, groups);
  const Vec16 inverse = Vec16::set1(1.0f / block.shape.scale);
  for (int64_t r = 0; r < block.rows; ++r) {
    if (page.bias == nullptr && visible.end[r] >= 16 * groups && visible.first[r] == 0) continue;
    for (int64_t t = 0; t < 16 * groups; t += 16) {
      float* s = block.s + r * kPageTokens + t;
      Vec16 x = Vec16::load(s);
      if (page.bias != nullptr) x = Vec16::fma(Vec16::load(page.bias + t), inverse, x);
      x = x.first(visible.end[r] - static_cast<int32_t>(t), kUnseen);
      if (visible.first[r] > t) {
        const Vec16 seen =
            Vec16::zero().first(visible.first[r] - static_cast<int32_t>(t), 1.0f);  // 1, or 0 before the window
        x = Vec16::fma(x, seen, (seen - Vec16::set1(1.0f)) * Vec16::set1(-kUnseen));
      }
      x.store(s);
    }
  }
}

// Turns the first 16 Groups scores of row r into probabilities p = 2^(scale log2(e) s - m). Updates m, l and the first
// `width` values of the row of o.
template <int Groups, typename T>
void softmax_row(Block<T>& block, int64_t r, int64_t width) {
  float* const s = block.s + r * kPageTokens;
  Vec16 x[Groups], top = Vec16::set1(kNoMaximum);
  unrolled<Groups>([&](auto g) { x[g] = Vec16::load(s + 16 * g); });
  unrolled<Groups>([&](auto g) { top = Vec16::max(top, x[g]); });
  const float scale = block.shape.scale * kLog2e, reached = top.reduce_max() * scale;
  const float maximum = reached > block.m[r] ? reached : block.m[r];
  // With few rows, a branch that is often mispredicted costs more than it saves. The factor is exactly 1 if m stays.
  constexpr int64_t kFewRows = 8;
  if (block.rows <= kFewRows || maximum > block.m[r]) {
    const Vec16 keep = exp2(Vec16::set1(block.m[r] - maximum));
    block.m[r] = maximum;
    (Vec16::load(block.l + 16 * r) * keep).store(block.l + 16 * r);
    float* const o = block.o + r * block.wide;
    for (int64_t d = 0; d < width; d += 16) (Vec16::load(o + d) * keep).store(o + d);
    if (block.table != nullptr) {
      (Vec16::load(block.coded_l + 16 * r) * keep).store(block.coded_l + 16 * r);
      float* const coded = block.coded_o + r * block.wide;
      for (int64_t d = 0; d < block.wide; d += 16) (Vec16::load(coded + d) * keep).store(coded + d);
    }
  }
  const Vec16 minus_m = Vec16::set1(-block.m[r]), factor = Vec16::set1(scale);
  Vec16 sum = Vec16::load(block.l + 16 * r);
  unrolled<Groups>([&](auto g) {
    const Vec16 p = exp2(Vec16::fma(x[g], factor, minus_m));
    sum = sum + p;
    p.store(s + 16 * g);
  });
  sum.store(block.l + 16 * r);
}

template <typename T>
void softmax(Block<T>& block, int64_t groups, int64_t width) {
  const auto with = [&](auto n) {
    for (int64_t r = 0; r < block.rows; ++r) softmax_row<n>(block, r, width);
  };
  switch (groups) {
    case 1: return with(std::integral_constant<int, 1>{});
    case 2: return with(std::integral_constant<int, 2>{});
    case 3: return with(std::integral_constant<int, 3>{});
    default: return with(std::integral_constant<int, 4>{});
  }
}

}  // namespace
}  // namespace smartkv::kernels
