// What each CPU level implements of attention() and attention_mass(): one block of query rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/indexed_rows.h"

namespace smartkv::kernels {

constexpr int64_t kMaxBlockRows = 48;       // queries x heads of one block
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kStretchSegments = 4;     // segments of one stretch: the unit of splitting and of exact merging

// A stretch's result for one row: maximum (base 2 exponent), sum, unnormalised output [head_dim].
constexpr int64_t partial_floats(int64_t head_dim) { return head_dim + 2; }

// What a segment format is, but for its kernels (cpu/attention_pages.h): one row per KvSegment::Format.
struct SegmentFormat {
  void (*check)(const AttentionShape& shape, const KvSegment& segment);  // std::invalid_argument
  int64_t (*head_bytes)(const AttentionShape& shape, const KvSegment& segment);
};
constexpr std::size_t kSegmentFormats = 4;
extern const SegmentFormat kSegmentFormatRows[kSegmentFormats];

// std::invalid_argument for what no kernel runs.
void check(const AttentionShape& shape);
void check(const AttentionShape& shape, const KvSegment& segment);

int64_t tokens_of(std::span<const KvSegment> segments);
// Floats before the results of a query.
int64_t mass_offset(const AttentionShape& shape, const AttentionMassTask& task, int64_t query);

struct AttentionKernels {
  // Row r of a member's stretch s goes to scratch.partial + member.partial + (s * rows + r) * partial_floats, where `rows` are
  // the member's; or what all of them come to, to the task's `out`.
  void (*block)(const AttentionShape& shape, std::span<const AttentionTask> tasks, const AttentionScratch::Item& item,
                AttentionScratch& scratch);
  // Merges the partials of all stretches of an item of one member in order and writes the task's `out`.
  void (*merge)(const AttentionShape& shape, std::span<const AttentionTask> tasks, const AttentionScratch::Item& item,
                const AttentionScratch& scratch);
  // Queries and heads of an item of attention_mass(). The items of one KV head run in the order of their heads: those
  // of later heads take the maximum with what is there.
  void (*mass)(const AttentionShape& shape, const AttentionMassTask& task, const AttentionScratch::Item& item);
  // What the entries of `segments` promise to one query, which sees them all: the probability that the index gives them (or the
  // keys themselves, where there is none), summed over a KV head's query heads; 0 for another KV head's.
  // q: the query, [n_heads, head_dim]; scores: scratch, f32 [heads of a KV head][entries]; promise: f32 [entries], kPageTokens of
  // each segment.
  void (*promise)(const AttentionShape& shape, const float* q, int64_t kv_head, std::span<const KvSegment> segments, float* scores,
                  float* promise);
  // bits[i]: for each of the kPageTokens promises from promise + kPageTokens * pages[i] on, whether it is greater than `least`, the
  // first in the lowest bit. How many are. NaN never is.
  int64_t (*greater)(const float* promise, std::span<const int32_t> pages, float least, uint64_t* bits);
  // The first kPageTokens rows, or all, of one KV head as a dense page of it, whose other slots are finite where the rows are. The
  // rows that follow are asked for.
  void (*gather)(const AttentionShape& shape, std::span<const IndexedRow> rows, void* page);
};

extern const AttentionKernels kAttentionScalar, kAttentionAvx2, kAttentionAvx512, kAttentionAvx512Vnni, kAttentionAmx;

}  // namespace smartkv::kernels
