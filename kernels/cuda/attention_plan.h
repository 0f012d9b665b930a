// Plans a call of attention() or attention_mass(): which blocks run over which rows and segments. On the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention_tables.h"

namespace smartkv::kernels::cuda {

constexpr int kFewRows = 16, kManyRows = 64;  // of a block: decoding; prompts

// Items that one launch runs: of a kind of block, and with the shared memory that their pages want.
struct ItemClass {
  int rows = 0;                     // of a block: kFewRows or kManyRows
  int stages = 0, stage_bytes = 0;  // pages in shared memory at once
  std::vector<Item> items;
};

// Queries as of AttentionTask: what the indices of their pages promise to them.
struct PromiseTask {
  const float* q = nullptr;
  int64_t q_stride = 0, n = 0;
  std::span<const KvSegment> segments;
  float* promises = nullptr;  // of each query [pages that are not read whole][n_kv_heads][promise_parts()][kPage]
  int64_t stride = 0;         // from one query to the next, floats
};

// Keeps its memory from call to call.
struct AttentionPlan {
  std::vector<Segment> segments;
  std::vector<Task> tasks;
  ItemClass classes[4];
  std::vector<Rows> merges;  // those in several splits
  int64_t partial_rows = 0;
};

void check_shape(const AttentionShape& shape);  // std::invalid_argument for one that the kernels do not run
Segment table_row(const AttentionShape& shape, const KvSegment& segment);  // of an indexed page: its index

// std::invalid_argument as from the checks above.
void plan_attention(const AttentionShape& shape, std::span<const AttentionTask> tasks, AttentionPlan& plan);
// Blocks of kFewRows, all with partial results; `merges` are all rows.
void plan_attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks, AttentionPlan& plan);
void plan_promises(const AttentionShape& shape, std::span<const PromiseTask> tasks, AttentionPlan& plan);

}  // namespace smartkv::kernels::cuda
