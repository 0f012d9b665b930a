// Plans a call of attention() or attention_mass() on the host: which blocks run over which rows and segments.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention_tables.h"

namespace smartkv::kernels::cuda {

constexpr int kFewRows = 16, kManyRows = 64;  // Rows of a block: few for decoding, many for prompts.

// Items that one launch runs. They share the kind of block, and the shared memory that their pages need.
struct ItemClass {
  int rows = 0;                     // Rows of a block: kFewRows or kManyRows.
  int stages = 0, stage_bytes = 0;  // Pages in shared memory at once, and bytes of each.
  int decoded_bytes = 0;            // Shared memory in which calibrated pages are decoded.
  std::vector<Item> items;
};

// Queries, as in AttentionTask, and where to write what the indices of their pages promise to them.
struct PromiseTask {
  const float* q = nullptr;
  int64_t q_stride = 0, n = 0;
  std::span<const KvSegment> segments;
  float* promises = nullptr;  // For each query, [pages that are not read whole][n_kv_heads][promise_parts()][kPage].
  int64_t stride = 0;         // Floats from one query to the next.
};

// The plan of a call. It keeps its memory from call to call.
struct AttentionPlan {
  std::vector<Segment> segments;
  std::vector<Task> tasks;
  ItemClass classes[4];
  std::vector<Rows> merges;  // Rows with several splits.
  int64_t partial_rows = 0;
};

// Throws std::invalid_argument for a shape that the kernels do not run.
void check_shape(const AttentionShape& shape);
// Returns the table row of a segment. For an indexed page, this is the row of its index.
Segment table_row(const AttentionShape& shape, const KvSegment& segment);

// Returns the shape of pages with n_heads KV heads: one query head for each.
AttentionShape page_shape(int64_t n_heads, int64_t head_dim);
// Throws std::invalid_argument unless `page` is a dense page of this shape.
void check_dense(int64_t n_heads, int64_t head_dim, const KvSegment& page);
// Throws std::invalid_argument unless tokens [first, first + n) are of one page.
void check_tokens(int64_t first, int64_t n);
// Returns the table row of one KV head of a dense or quantized page, of which only K is set to that head.
// channel_order: the page's order on the device. Throws std::invalid_argument for a page that the kernels do not read.
Segment head_row(int64_t head_dim, const KvSegment& page, int64_t head, const uint8_t* channel_order);

// Overwrites `plan`. Throws std::invalid_argument as check_shape() and the CPU's check() do.
void plan_attention(const AttentionShape& shape, std::span<const AttentionTask> tasks, AttentionPlan& plan);
// Plan blocks of kFewRows. All rows have partial results and are in `merges`.
void plan_attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks, AttentionPlan& plan);
void plan_promises(const AttentionShape& shape, std::span<const PromiseTask> tasks, AttentionPlan& plan);

}  // namespace smartkv::kernels::cuda
