// One page of either format against a block of query rows: scores, online softmax, values. Include after one
// vec16_codes_*.h; everything has internal linkage.
//
// A block is a matrix of query rows (queries x the heads that share one KV head). Rows never mix, and every sum runs in
// an order of its own, so that a row's bits do not depend on its block.
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
constexpr float kNoMaximum = -1e30f;  // of no token; finite, so that differences are

template <typename T>
struct BlockState {
  alignas(64) T q[kMaxBlockRows * kMaxHeadDim];
  alignas(64) T p[kMaxBlockRows * kPageTokens];
  alignas(64) float s[kMaxBlockRows * kPageTokens + 16];  // make_weights() may read 16 more
  alignas(64) float o[kMaxBlockRows * kMaxHeadDim];
  alignas(64) float l[kMaxBlockRows * 16];
  float m[kMaxBlockRows];
  alignas(64) float merged_o[kMaxBlockRows * kMaxHeadDim];
  float merged_m[kMaxBlockRows], merged_l[kMaxBlockRows];

  // For quantised pages: the queries in the order of the page's channels, and the weights of the product at hand.
  alignas(64) float ordered_q[kMaxBlockRows * kMaxHeadDim + 16];
  const uint8_t* order = nullptr;
  bool ordered = false;
  alignas(64) WeightQuad weights[kMaxBlockRows * weight_stride(kMaxHeadDim)];
  float steps[kMaxBlockRows * kRuns], offsets[kMaxBlockRows];
};

// The rows of an item: query item.query + r / item.n_heads, head first_head() + r % item.n_heads.
inline int64_t rows_of(const AttentionScratch::Item& item) { return int64_t{item.n_queries} * item.n_heads; }

inline int64_t first_head(const AttentionShape& shape, const AttentionScratch::Item& item) {
  return item.kv_head * (shape.n_heads / shape.n_kv_heads) + item.head;
}

template <typename Task>
const float* query_row(const AttentionShape& shape, const Task& task, const AttentionScratch::Item& item, int64_t r) {
  return task.q + (item.query + r / item.n_heads) * task.q_stride +
         (first_head(shape, item) + r % item.n_heads) * shape.head_dim;
}

template <typename T, typename Task>
void load_queries(const AttentionShape& shape, const Task& task, const AttentionScratch::Item& item,
                  BlockState<T>& st) {
  for (int64_t r = 0; r < rows_of(item); ++r) {
    const float* q = query_row(shape, task, item, r);
    for (int64_t d = 0; d < shape.head_dim; d += 16) {
      if constexpr (std::is_same_v<T, float>) {
        Vec16::load(q + d).store(st.q + r * shape.head_dim + d);
      } else {
        Vec16::load(q + d).store_bf16(st.q + r * shape.head_dim + d);
      }
    }
  }
}

// Tokens of a segment that each row sees, if the block's first query sees `seen` from the segment's start on. Returns
// the most that any row sees.
inline int32_t visible_tokens(const AttentionScratch::Item& item, int64_t seen, int32_t tokens, int32_t* visible) {
  int32_t most = 0;
  for (int64_t r = 0; r < rows_of(item); ++r) {
    const int64_t n = seen + r / item.n_heads;
    visible[r] = static_cast<int32_t>(n < 0 ? 0 : n < tokens ? n : tokens);
    if (visible[r] > most) most = visible[r];
  }
  return most;
}

// Where one KV head of a segment lies.
struct Page {
  const KvSegment* segment = nullptr;
  const char* k = nullptr;        // kQuantized: the head's block
  const char* v = nullptr;        // kDense
  QuantizedOffsets at = {};       // kQuantized
  const uint8_t* order = nullptr;

  const uint16_t* halves(int64_t offset) const { return reinterpret_cast<const uint16_t*>(k + offset); }
  const uint8_t* k_codes() const { return reinterpret_cast<const uint8_t*>(k + at.k_codes); }
  const uint8_t* v_codes() const { return reinterpret_cast<const uint8_t*>(quantized() ? k + at.v_codes : v); }
  bool quantized() const { return segment->format == KvSegment::Format::kQuantized; }
};

inline Page page_of(const AttentionShape& shape, const KvSegment& segment, int64_t kv_head) {
  Page page;
  page.segment = &segment;
  page.k = static_cast<const char*>(segment.k) + kv_head * segment.head_stride;
  if (page.quantized()) {
    page.at = quantized_offsets(segment.quantized, shape.head_dim);
    if (segment.channel_order != nullptr) page.order = segment.channel_order + kv_head * shape.head_dim;
  } else {
    page.v = static_cast<const char*>(segment.v) + kv_head * segment.head_stride;
  }
  return page;
}

template <typename T, typename Task>
void quantized_scores(const AttentionShape& shape, const Task& task, const AttentionScratch::Item& item,
                      const Page& page, const Page* next, BlockState<T>& st) {
  const int64_t dim = shape.head_dim, rows = rows_of(item);
  if (!st.ordered || st.order != page.order) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* q = query_row(shape, task, item, r);
      for (int64_t d = 0; d < dim; ++d) st.ordered_q[r * dim + d] = q[page.order == nullptr ? d : page.order[d]];
    }
    st.ordered = true;
    st.order = page.order;
  }
  const CodeRuns& runs = page.segment->quantized.k;
  const uint16_t *scales = page.halves(page.at.k_scales), *zeros = page.halves(page.at.k_zeros);
  make_weights(runs, rows, st.ordered_q, dim, scales, zeros, st.weights, weight_stride(dim), st.steps,
               st.offsets);
  for (int64_t r = 0; r < rows; ++r) {
    const Vec16 offset = Vec16::set1(st.offsets[r]);
    for (int64_t t = 0; t < kPageTokens; t += 16) offset.store(st.s + r * kPageTokens + t);
  }
  if (next != nullptr) {
    for (int64_t byte = 0; byte < next->at.k_codes; byte += 64) Vec16::prefetch(next->k + byte);
  }
  code_product(rows, runs, page.k_codes(), next == nullptr ? nullptr : next->k_codes(), kPageTokens, st.weights,
               weight_stride(dim), st.steps, st.s, kPageTokens);
}

// st.s [rows][kPageTokens] = q k of the page's first 16 groups tokens.
template <typename T, typename Task>
void page_scores(const AttentionShape& shape, const Task& task, const AttentionScratch::Item& item, const Page& page,
                 const Page* next, int64_t groups, BlockState<T>& st) {
  if (page.quantized()) return quantized_scores(shape, task, item, page, next, st);
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const T* next_k = next == nullptr || next->quantized() ? nullptr : reinterpret_cast<const T*>(next->k);
  product<T>(rows_of(item), groups, st.q, shape.head_dim, reinterpret_cast<const T*>(page.k), kPageTokens * kStep,
             shape.head_dim / kStep, st.s, kPageTokens, false, next_k);
}

// Turns the first 16 Groups scores of row r into p = 2^(scale log2(e) s - m), calls store(r, group, p), and updates m,
// l and the row [width] of o.
template <int Groups, typename T, typename Store>
void softmax_row(const AttentionShape& shape, int64_t r, int32_t visible, int64_t width, BlockState<T>& st,
                 const Store& store) {
  const Vec16 scale = Vec16::set1(shape.scale * kLog2e);
  Vec16 x[Groups], top = Vec16::set1(kNoMaximum);
  unrolled<Groups>([&](auto g) { x[g] = Vec16::load(st.s + r * kPageTokens + 16 * g) * scale; });
  if (visible < 16 * Groups) {
    unrolled<Groups>([&](auto g) { x[g] = x[g].first(visible - 16 * g, 2 * kNoMaximum); });
  }
  unrolled<Groups>([&](auto g) { top = Vec16::max(top, x[g]); });
  const float maximum = top.reduce_max();
  if (maximum > st.m[r]) {
    const Vec16 keep = exp2(Vec16::set1(st.m[r] - maximum));
    st.m[r] = maximum;
    (Vec16::load(st.l + 16 * r) * keep).store(st.l + 16 * r);
    for (int64_t d = 0; d < width; d += 16) (Vec16::load(st.o + r * width + d) * keep).store(st.o + r * width + d);
  }
  const Vec16 m = Vec16::set1(st.m[r]);
  Vec16 sum = Vec16::load(st.l + 16 * r);
  unrolled<Groups>([&](auto g) {
    const Vec16 p = exp2(x[g] - m);
    sum = sum + p;
    store(r, g, p);
  });
  sum.store(st.l + 16 * r);
}

template <typename T, typename Store>
void softmax(const AttentionShape& shape, int64_t rows, int64_t groups, const int32_t* visible, int64_t width,
             BlockState<T>& st, const Store& store) {
  const auto with = [&](auto n) {
    for (int64_t r = 0; r < rows; ++r) softmax_row<n>(shape, r, visible[r], width, st, store);
  };
  switch (groups) {
    case 1: return with(std::integral_constant<int, 1>{});
    case 2: return with(std::integral_constant<int, 2>{});
    case 3: return with(std::integral_constant<int, 3>{});
    default: return with(std::integral_constant<int, 4>{});
  }
}

// One page into m, l and o. visible[r]: tokens of it that row r sees; most: their maximum. next: what follows, or
// nullptr.
template <typename T, typename Task>
void attend_page(const AttentionShape& shape, const Task& task, const AttentionScratch::Item& item, const Page& page,
                 const Page* next, const int32_t* visible, int32_t most, BlockState<T>& st) {
  constexpr int64_t kStep = std::is_same_v<T, float> ? 1 : 2;
  const int64_t dim = shape.head_dim, rows = rows_of(item);
  const int64_t groups = page.quantized() ? kPageTokens / 16 : (most + 15) / 16;
  page_scores(shape, task, item, page, next, groups, st);
  if (page.quantized()) {
    softmax(shape, rows, groups, visible, dim, st,
            [&](int64_t r, int64_t g, Vec16 p) { p.store(st.s + r * kPageTokens + 16 * g); });
    const CodeRuns& runs = page.segment->quantized.v;
    const uint16_t *scales = page.halves(page.at.v_scales), *zeros = page.halves(page.at.v_zeros);
    constexpr int64_t kStride = weight_stride(kPageTokens);
    make_weights(runs, rows, st.s, kPageTokens, scales, zeros, st.weights, kStride, st.steps, st.offsets);
    for (int64_t r = 0; r < rows; ++r) {
      const Vec16 offset = Vec16::set1(st.offsets[r]);
      for (int64_t d = 0; d < dim; d += 16) (Vec16::load(st.o + r * dim + d) + offset).store(st.o + r * dim + d);
    }
    code_product(rows, runs, page.v_codes(), next == nullptr ? nullptr : next->v_codes(), dim, st.weights, kStride,
                 st.steps, st.o, dim);
  } else {
    softmax(shape, rows, groups, visible, dim, st, [&](int64_t r, int64_t g, Vec16 p) {
      if constexpr (kStep == 1) {
        p.store(st.p + r * kPageTokens + 16 * g);
      } else {
        p.store_bf16(st.p + r * kPageTokens + 16 * g);
      }
    });
    const T* next_v = next == nullptr || next->quantized() ? nullptr : reinterpret_cast<const T*>(next->v);
    product<T>(rows, dim / 16, st.p, kPageTokens, reinterpret_cast<const T*>(page.v), dim * kStep,
               (most + kStep - 1) / kStep, st.o, dim, true, next_v);
  }
}

}  // namespace
}  // namespace smartkv::kernels
