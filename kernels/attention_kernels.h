// The functions that each CPU level implements for attention() and attention_mass(). They compute one block of query
// rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/indexed_rows.h"

namespace smartkv::kernels {

constexpr int64_t kMaxBlockRows = 48;  // Most rows (queries times heads) of one block.
constexpr int64_t kMaxHeadDim = 256;
// Segments of one split. Contexts are cut, and partial results merged, in units of splits.
constexpr int64_t kSplitSegments = 4;

// Returns the floats of the result of one split for one row: the maximum (a base 2 exponent), the sum, and the
// unnormalized output [head_dim].
constexpr int64_t partial_floats(int64_t head_dim) { return head_dim + 2; }

// Properties of a segment format, except for its kernels, which are in cpu/attention_pages.h. There is one row per
// KvSegment::Format.
struct SegmentFormat {
  void (*check)(const AttentionShape& shape, const KvSegment& segment);     // Throws std::invalid_argument.
  int64_t (*bytes)(const AttentionShape& shape, const KvSegment& segment);  // Bytes of its K and V.
};
constexpr std::size_t kSegmentFormats = 5;
extern const SegmentFormat kSegmentFormatRows[kSegmentFormats];

// Throw std::invalid_argument for a shape or a segment that no kernel runs.
void check(const AttentionShape& shape);
void check(const AttentionShape& shape, const KvSegment& segment);

// Returns the tokens of all segments together.
int64_t tokens_of(std::span<const KvSegment> segments);
// Returns how many floats of task.mass lie before the results of `query`.
int64_t mass_offset(const AttentionShape& shape, const AttentionMassTask& task, int64_t query);

// The attention functions of one CPU level.
struct AttentionKernels {
  // Computes one item. The results go to one of two places:
  //  - If a member has partial results, row r of split s goes to
  //    scratch.partial + member.partial + (s * rows + r) * partial_floats(head_dim). The member has `rows` rows.
  //  - If its `partial` is -1, the merged result of all splits goes to the task's `out`.
  void (*block)(const AttentionShape& shape, std::span<const AttentionTask> tasks, const AttentionScratch::Item& item,
                AttentionScratch& scratch);
  // Merges the partial results of all splits of an item with one member, in order. Writes the task's `out`.
  void (*merge)(const AttentionShape& shape, std::span<const AttentionTask> tasks, const AttentionScratch::Item& item,
                const AttentionScratch& scratch);
  // Computes attention_mass() for the queries and heads of an item. The items of one KV head run in the order of their
  // heads. An item of later heads takes the maximum of its own results and the values that are already there.
  void (*mass)(const AttentionShape& shape, const AttentionMassTask& task, const AttentionScratch::Item& item);
  // Computes what the entries of `segments` promise to one query, which sees all of them. The promise of an entry is
  // the probability that the index gives it, summed over the query heads of the KV head. Segments without an index use
  // the keys themselves. Entries of another KV head promise 0.
  //   q: the query, [n_heads, head_dim]
  //   scores: scratch, f32 [heads of a KV head][entries]
  //   promise: f32 [entries], kPageTokens of each segment
  void (*promise)(const AttentionShape& shape, const float* q, int64_t kv_head, std::span<const KvSegment> segments,
                  float* scores, float* promise);
  // Sets bits[i] to the promises greater than `least` among the kPageTokens promises from promise + kPageTokens *
  // pages[i] on. The lowest bit is the first promise. NaN is never greater. Returns how many promises are greater.
  int64_t (*greater)(const float* promise, std::span<const int32_t> pages, float least, uint64_t* bits);
  // Gathers the first kPageTokens rows of one KV head, or all rows if there are fewer, into a dense page of that head.
  // Slots up to the next multiple of 16 repeat the last row, and later slots stay as they are. Prefetches the rows that
  // follow.
  void (*gather)(const AttentionShape& shape, std::span<const IndexedRow> rows, void* page);
};

extern const AttentionKernels kAttentionScalar, kAttentionAvx2, kAttentionAvx512, kAttentionAvx512Vnni, kAttentionAmx;

}  // namespace smartkv::kernels
