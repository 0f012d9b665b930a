// Attention of new queries over the KV segments of a sequence. Segments may have different formats; their results are
// merged by log-sum-exp:
//   lse = log sum_s exp(lse_s),  o = sum_s exp(lse_s - lse) o_s.
// No matrix of scores is stored (FlashAttention, Dao et al. 2022). Long contexts are computed in splits
// (Flash-Decoding, Dao et al. 2023).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/quantized_page.h"

namespace smartkv {
class ThreadPool;
}

namespace smartkv::kernels {

struct WidthTable;  // kernels/calibrated_page.h

// The same numbers in host memory and in memory of a device.
struct MirroredFloats {
  const float* host = nullptr;
  const float* device = nullptr;
};

// Element type of dense pages, and of the model's activations.
enum class KvType : uint8_t { kBf16, kF32 };

// A run of tokens of one layer, for all KV heads or for one.
//
// A dense page holds kPageTokens tokens per KV head. Its layout turns both products of attention into small matrix
// products with broadcast query values (T = kPageTokens, D = head_dim):
//   bf16: K [D/2][T][2], V [T/2][D][2]   (pairs, as the bf16 dot product instructions read them)
//   f32:  K [D][T],      V [T][D]
// Results do not depend on slots past `tokens`, which may hold anything, including NaN.
//
// A quantized page (quantized_page.h), a calibrated page (calibrated_page.h), a cut page and an indexed page always
// hold kPageTokens tokens, all of them before the queries. In dense and quantized pages each KV head may hold different
// tokens of the sequence. A calibrated page holds successive ones, for all KV heads.
//
// A cut page has the layout of a dense page but holds only some channels of K and of V. The others count as 0. D in the
// layouts above is then k_channels for K and v_channels for V. Both are multiples of 16 and at most head_dim.
//
// An indexed page holds the tokens of all KV heads as rows, K and V of a token side by side (indexed_rows.h), and in
// addition their quantized page, the index. A query uses the index to choose which rows it reads; see attention().
struct KvSegment {
  enum class Format : uint8_t { kDense, kQuantized, kIndexed, kCut, kCalibrated };
  Format format = Format::kDense;
  int32_t tokens = 0;
  // kDense and kCut: K. kQuantized, kIndexed and kCalibrated: blocks of codes, which contain both K and V. The parts of
  // the KV heads are head_stride bytes apart.
  const void* k = nullptr;
  const void* v = nullptr;  // kDense and kCut: V, laid out as `k`. kIndexed: the rows
  int64_t head_stride = 0;  // bytes; not used for the rows of kIndexed, nor for kCalibrated
  // kIndexed: this page's share, at least 1, of the tokens that each KV head of a query may read: it reads as many
  // tokens as the shares of all indexed pages add up to, wherever they lie. A page with the share kPageTokens is read
  // whole. REQUIRES: an indexed page has no bias and is for all KV heads, and there is no window.
  int32_t read = 0;
  int32_t row_bits = 0;            // kIndexed: bits of quantized rows, 4 or 8; 0 for dense rows
  QuantizedLayout quantized = {};  // kQuantized; kIndexed: layout of the index
  // All formats but kDense: [n_kv_heads, head_dim], see quantized_page.h. Null means the identity.
  const uint8_t* channel_order = nullptr;
  // kCut: channel c of the page is channel_order[c] of K and value_order[c] of V. Same shape; null means the identity.
  const uint8_t* value_order = nullptr;
  int32_t k_channels = 0, v_channels = 0;  // kCut: number of channels that the page holds
  const WidthTable* table = nullptr;       // kCalibrated
  MirroredFloats middle = {};              // kCalibrated: PageRotations::middle() of the page
  // Added to the scaled scores before the softmax, in natural log units: f32 [n_kv_heads, kPageTokens], finite for the
  // first `tokens`. The bias log n makes an entry count as n tokens. May be null.
  const float* bias = nullptr;
  // The only KV head that has these tokens; -1 if all have them.
  int32_t kv_head = -1;

  bool is_indexed() const { return format == Format::kIndexed; }
  bool is_of(int64_t head) const { return kv_head < 0 || kv_head == head; }
  // Returns a calibrated page.
  static KvSegment calibrated(const void* page, const WidthTable* table, MirroredFloats middle) {
    KvSegment segment;
    segment.format = Format::kCalibrated;
    segment.tokens = static_cast<int32_t>(kPageTokens);
    segment.k = page;
    segment.table = table;
    segment.middle = middle;
    return segment;
  }
  // Returns part number `place` of this page (counted in head_stride) as a segment that only KV head `head` sees.
  // REQUIRES: a dense or quantized page without channel_order and bias.
  KvSegment of_head(int64_t place, int64_t head) const;
};

struct AttentionShape {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;  // a multiple of 16, at most 256
  float scale = 0;       // 1 / sqrt(head_dim); above 0
  KvType type = KvType::kBf16;
  // A query sees only the last `window` tokens, including its own (sliding-window attention, Beltagy et al. 2020); 0
  // means all. REQUIRES: the last `window` tokens of the segments are in order of position.
  int64_t window = 0;
  // Scores, the products of query and key after `scale`, become soft_cap tanh(score / soft_cap) before biases are added
  // (Gemma 2, Gemma Team 2024); 0 for none.
  float soft_cap = 0;
  // Score of a further entry of each query head, which all queries see and whose value is zero (attention sinks of
  // gpt-oss, Agarwal et al. 2025): f32 [n_heads], in natural log units. Null if there is none.
  const float* sinks = nullptr;
};

// Returns the bytes of a segment's K and V over all its KV heads, without channel_order and bias.
int64_t segment_bytes(const AttentionShape& shape, const KvSegment& segment);

// The queries of one sequence. They belong to the last n tokens of `segments`. Query i sees all tokens except the last
// n - 1 - i (causal mask). Its heads do not see segments of another KV head.
struct AttentionTask {
  const float* q = nullptr;  // [n, n_heads, head_dim] after RoPE, rows q_stride floats apart
  int64_t q_stride = 0;
  int64_t n = 0;
  std::span<const KvSegment> segments;
  void* out = nullptr;  // [n, n_heads, head_dim] of shape.type, contiguous
};

// Probe queries: like AttentionTask, but the result is the attention that each token receives.
struct AttentionMassTask {
  const float* q = nullptr;  // [n, n_heads, head_dim] after RoPE, rows q_stride floats apart
  int64_t q_stride = 0;
  int64_t n = 0;
  std::span<const KvSegment> segments;
  // Query i sees t_i = total - (n - 1 - i) tokens. Its result is f32 [n_kv_heads, t_i]: for each KV head the maximum
  // over its query heads of softmax(scale q K^T + bias). It is 0 for tokens of other KV heads, outside the window, or
  // not read from an indexed page. The results of the queries follow each other.
  float* mass = nullptr;
};

struct SparseWorkspace;  // kernels/sparse_attention.h

// Scratch memory of attention() and attention_mass(), for one call at a time. It grows to the needs of the largest call
// and is reused. A split is a run of kSplitSegments segments (attention_kernels.h).
struct AttentionScratch {
  // Tasks order[first] to order[end - 1], whose first `splits` splits consist of the same pages.
  struct Group {
    int32_t first, end, splits;
  };
  // A task's part of an item. `partial`: where the results of its splits begin in the vector `partial`; -1 if the item
  // covers all splits and writes `out` directly.
  struct Member {
    int32_t task;
    int64_t partial;
  };
  // A unit of work: queries [query, query + n_queries) of heads [head, head + n_heads) of a KV head, for n_members
  // members, over splits [split, split_end).
  struct Item {
    int32_t member, n_members, kv_head, head, n_heads, query, n_queries, split, split_end;
  };
  std::vector<int32_t> order;
  std::vector<Group> groups;
  std::vector<Member> members;
  std::vector<Item> items, merges;
  std::vector<float> partial;
  std::vector<AttentionTask> plain;  // tasks without indexed pages
  std::vector<AttentionMassTask> plain_mass;
  std::vector<std::shared_ptr<SparseWorkspace>> sparse;  // by thread
};

// Computes softmax(scale q K^T + bias) V for all tasks. Throws std::invalid_argument for a shape or a segment that it
// does not support.
//
// A query's result depends, bit for bit, on its own segments only, and on how its tokens are divided into them. It does
// not depend on the other tasks, the number of queries in the call or the number of threads, because work is split at
// fixed numbers of segments. Tasks that begin with the same pages and have the same, small number of queries read
// these pages together, once (Hydragen, Juravsky et al. 2024).
//
// Each KV head of a query reads only the most promising tokens of indexed pages, as many as the pages' `read` adds up
// to. A token's promise is its attention probability according to the index, summed over the KV head's query heads. The
// n unread tokens of a page become one entry with the mean K and V of the page and the bias log n. After Quest (Tang et
// al. 2024) and Double Sparsity (Yang et al. 2024), applied to single tokens.
void attention(ThreadPool& pool, const AttentionShape& shape, std::span<const AttentionTask> tasks,
               AttentionScratch& scratch);

// Returns the number of floats that a task writes to `mass`.
int64_t attention_mass_floats(const AttentionShape& shape, const AttentionMassTask& task);

// Computes the attention that each token receives from probe queries. As with attention(), a query's result depends
// only on its own segments. Throws as attention() does.
void attention_mass(ThreadPool& pool, const AttentionShape& shape, std::span<const AttentionMassTask> tasks,
                    AttentionScratch& scratch);

}  // namespace smartkv::kernels
