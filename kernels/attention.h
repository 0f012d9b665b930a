// Attention of new queries over a sequence's KV segments, each in its own format, merged by log-sum-exp:
//   lse = log sum_s exp(lse_s),  o = sum_s exp(lse_s - lse) o_s.
// Flash style (Dao et al. 2022): no score matrix in memory; split over the context (Flash-Decoding, Dao et al. 2023).
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

// Element type of dense pages, and of the model's activations.
enum class KvType : uint8_t { kBf16, kF32 };

// One run of tokens of one layer, of all its KV heads or of one.
//
// A dense page holds kPageTokens tokens per KV head, laid out so that both products are small matrix products
// with the queries' values broadcast (T = kPageTokens, D = head_dim):
//   bf16: K [D/2][T][2], V [T/2][D][2]   (pairs, as the bf16 dot product instructions read them)
//   f32:  K [D][T],      V [T][D]
// Slots past `tokens` may hold anything, NaN too: no result depends on them. A quantised page (quantized_page.h) always holds
// kPageTokens tokens, none of them later than a query. Neither format cares which tokens of the sequence a KV head holds.
//
// A cut page holds kPageTokens tokens of all KV heads, none later than a query, as a dense page does, but only some of the channels of
// K, and of V: the others count as 0. `head_dim` above is k_channels in K and v_channels in V, both multiples of 16.
//
// An indexed page holds kPageTokens tokens of all KV heads, none later than a query, as rows, K and V of a token side by side
// (indexed_rows.h); and beside them a quantised page whose keys resemble theirs: the index. Which tokens a query reads: see
// attention().
struct KvSegment {
  enum class Format : uint8_t { kDense, kQuantized, kIndexed, kCut };
  Format format = Format::kDense;
  int32_t tokens = 0;
  const void* k = nullptr;      // [n_kv_heads], each head_stride bytes apart; kQuantized, kIndexed: blocks of K and V together
  const void* v = nullptr;      // kDense, kCut; kIndexed: the rows
  int64_t head_stride = 0;      // bytes; of `k` and of a dense or cut page's `v`
  int32_t read = 0;             // kIndexed: what the page adds to the tokens that a KV head of a query reads; kPageTokens: all its
  int32_t row_bits = 0;         // kIndexed: of the rows' codes, 4 or 8; 0: dense rows
  QuantizedLayout quantized = {};          // kQuantized; kIndexed: of the index
  const uint8_t* channel_order = nullptr;  // not kDense: [n_kv_heads, head_dim], see quantized_page.h; null: identity
  // kCut: the page's channel c of K is channel_order[c], and of V value_order[c], which is of the same shape; null: identity.
  const uint8_t* value_order = nullptr;
  int32_t k_channels = 0, v_channels = 0;  // kCut
  // f32 [n_kv_heads, kPageTokens], finite for the first `tokens`, or null: what is added to the scaled scores before the
  // softmax, in natural log units. An entry that stands for n tokens has log n.
  const float* bias = nullptr;
  // Of the one KV head that attends to these tokens; -1: all do. The others' queries pass over them.
  int32_t kv_head = -1;

  bool is_indexed() const { return format == Format::kIndexed; }
  bool is_of(int64_t head) const { return kv_head < 0 || kv_head == head; }
  // What KV head `place` holds of a page without channel_order, for KV head `head` alone.
  KvSegment of_head(int64_t place, int64_t head) const;
};

struct AttentionShape {
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;  // a multiple of 16
  float scale = 0;       // 1 / sqrt(head_dim); above 0
  KvType type = KvType::kBf16;
  // Of the tokens that a query would see, it sees the last `window`, its own included (sliding window attention, Beltagy et al.
  // 2020); 0: all. At least as many tokens at the segments' end lie in the order of their positions.
  int64_t window = 0;
};

// Bytes of a segment's K and V, all its KV heads, without channel_order and bias.
int64_t segment_bytes(const AttentionShape& shape, const KvSegment& segment);

// The queries of one sequence: they are the last n tokens of `segments`; query i sees all tokens but the last n - 1 - i, and
// each KV head's those that are not another's.
struct AttentionTask {
  const float* q = nullptr;  // [n, n_heads, head_dim] after RoPE, rows q_stride floats apart
  int64_t q_stride = 0;
  int64_t n = 0;
  std::span<const KvSegment> segments;
  void* out = nullptr;  // [n, n_heads, head_dim] of shape.type, contiguous
};

// Probe queries: as AttentionTask, but the result is where they attend.
struct AttentionMassTask {
  const float* q = nullptr;  // [n, n_heads, head_dim] after RoPE, rows q_stride floats apart
  int64_t q_stride = 0;
  int64_t n = 0;
  std::span<const KvSegment> segments;
  // Query i sees t_i = total - (n - 1 - i) tokens and writes f32 [n_kv_heads, t_i]: for each KV head the maximum over its
  // query heads of softmax(scale q K^T + bias), 0 for tokens of another KV head. The queries' results follow each other
  // without gaps.
  float* mass = nullptr;
};

struct SparseWorkspace;  // kernels/sparse_attention.h

// Scratch that grows to the largest call and is then reused.
struct AttentionScratch {
  // Tasks order[first] to order[end - 1], which have the same pages in their first `stretches`.
  struct Group {
    int32_t first, end, stretches;
  };
  // A task's rows in an item. `partial`: where they lie in `partial`, from stretch 0 on; -1: the item covers all stretches
  // and writes `out`.
  struct Member {
    int32_t task;
    int64_t partial;
  };
  // Queries [query, query + n_queries) of one head range, of each of n_members, over stretches [stretch, stretch_end).
  struct Item {
    int32_t member, n_members, kv_head, head, n_heads, query, n_queries, stretch, stretch_end;
  };
  std::vector<int32_t> order;
  std::vector<Group> groups;
  std::vector<Member> members;
  std::vector<Item> items, merges;
  std::vector<float> partial;
  std::vector<AttentionTask> plain;  // without indexed pages
  std::vector<AttentionMassTask> plain_mass;
  std::vector<std::shared_ptr<SparseWorkspace>> sparse;  // by thread
};

// A query's result depends on its own segments only, bit for bit: not on the other tasks, the number of queries in
// the call, or the number of threads. Stretches of the context are cut at fixed token positions. Pages that tasks have in
// common at their beginning are read once for all of them (Hydragen, Juravsky et al. 2024).
//
// Of indexed pages each KV head of each query reads those tokens that promise most: as many as the pages' `read` add
// up to, by the probability that the index gives them, summed over its query heads. The n tokens of a page that are not
// read are one entry with the page's mean of K and of V, which counts n times. After Quest (Tang et al. 2024) and Double
// Sparsity (Yang et al. 2024), token by token.
void attention(ThreadPool& pool, const AttentionShape& shape, std::span<const AttentionTask> tasks,
               AttentionScratch& scratch);

// Floats that a task writes.
int64_t attention_mass_floats(const AttentionShape& shape, const AttentionMassTask& task);

// Bit for bit independent of the other tasks, the number of queries in a task and the number of threads.
void attention_mass(ThreadPool& pool, const AttentionShape& shape, std::span<const AttentionMassTask> tasks,
                    AttentionScratch& scratch);

}  // namespace smartkv::kernels
