// The blocks into which a call is divided, and the shared memory that docs/notes/2026-11-cuda-on-paper.md states for
// them.
#include "kernels/cuda/attention_plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "cuda_emulator.h"
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/sparse_attention.h"
#include "tests/kernels/indexed_sequence.h"

namespace smartkv::kernels::cuda {
namespace {

QuantizedLayout even_layout(int64_t dim, int bits) {
  return {uniform_runs(dim, bits), uniform_runs(kPageTokens, bits)};
}

// Returns class `c` of the plan of one task.
ItemClass planned(const Sequence& sequence, int64_t n, size_t c) {
  AttentionPlan plan;
  const AttentionTask task = sequence.task(n, nullptr);
  plan_attention(sequence.shape, {&task, 1}, plan);
  return plan.classes[c];
}

TEST(CudaAttentionPlan, CutsTheContextAtFixedSegments) {
  const Sequence sequence({8, 2, 64}, KvType::kBf16, 17 * kPageTokens, 1);
  AttentionPlan plan;
  const AttentionTask task = sequence.task(1, nullptr);
  plan_attention(sequence.shape, {&task, 1}, plan);
  const std::vector<Item>& items = plan.classes[0].items;
  ASSERT_EQ(items.size(), 2 * 3);
  for (size_t i = 0; i < items.size(); ++i) {
    const auto split = static_cast<int32_t>(i % 3);
    EXPECT_EQ(items[i].rows.kv_head, static_cast<int32_t>(i / 3));
    EXPECT_EQ(items[i].rows.n_heads, 4);
    EXPECT_EQ(items[i].split, split);
    EXPECT_EQ(items[i].segment, 8 * split);
    EXPECT_EQ(items[i].segment_end, std::min(17, 8 * split + 8));
    EXPECT_EQ(items[i].start, 512 * split);
  }
  EXPECT_EQ(plan.merges.size(), 2);
  EXPECT_EQ(plan.partial_rows, 2 * 3 * 4);
}

TEST(CudaAttentionPlan, EarlyQueriesDoNotReadWhatTheyDoNotSee) {
  const Sequence sequence({4, 1, 64}, KvType::kBf16, 5 * kPageTokens, 1);
  const ItemClass items = planned(sequence, 5 * kPageTokens, 2);
  ASSERT_EQ(items.items.size(), 20);  // 16 queries of 4 heads each; the last queries first
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(items.items[i].rows.query, static_cast<int32_t>(16 * (19 - i)));
    EXPECT_EQ(items.items[i].segment_end, static_cast<int32_t>((19 - i) / 4 + 1));
    EXPECT_EQ(items.items[i].rows.partial, -1);
  }
}

TEST(CudaAttentionPlan, SharedMemoryIsAsDocumented) {
  const auto few = [](int64_t dim, const PageFormats& formats, size_t c) {
    const Sequence sequence({4, 1, dim}, KvType::kBf16, 9 * kPageTokens, 1, formats);
    const ItemClass items = planned(sequence, 1, c);
    return dim == 64 ? BlockLayout<64, 1>::bytes(items) : BlockLayout<128, 1>::bytes(items);
  };
  EXPECT_EQ(few(64, {std::nullopt}, 0), 43904);
  EXPECT_EQ(few(128, {std::nullopt}, 0), 82944);
  const size_t expected[] = {67584, 43008, 33792, 30720};
  for (size_t i = 0; i < kCodeBits.size(); ++i) {
    EXPECT_EQ(few(128, {even_layout(128, kCodeBits[i])}, 1), expected[i]) << kCodeBits[i];
  }
  const Sequence prompt({4, 1, 128}, KvType::kBf16, 9 * kPageTokens, 1);
  const ItemClass many = planned(prompt, 64, 2);
  EXPECT_EQ((BlockLayout<128, 4>::bytes(many)), 109440);
}

TEST(CudaAttentionPlan, SharedMemoryOfIndexedPagesIsAsDocumented) {
  const IndexedSequence indexed({4, 1, 128}, KvType::kBf16, 16);
  AttentionPlan plan;
  const PromiseTask task{indexed.sequence.first_query(1), 512, 1,
                         std::span(indexed.sequence.segments).first(kIndexedPages)};
  plan_promises(indexed.sequence.shape, {&task, 1}, plan);
  ASSERT_EQ(plan.classes[1].items.size(), 2);  // all pages are small
  EXPECT_EQ((BlockLayout<128, 1>::bytes(plan.classes[1])), 22656);
  EXPECT_EQ(kPromiseBytes, 4096);
  EXPECT_EQ(choice_bytes(), 32904);
  EXPECT_EQ(gather_bytes(128), 34560);
}

// The rows of a block are several queries with their heads, so that the block reads an index once for all of them.
TEST(CudaAttentionPlan, QueriesShareAnIndex) {
  const IndexedSequence indexed({4, 1, 64}, KvType::kBf16, 16);
  AttentionPlan plan;
  const PromiseTask task{indexed.sequence.first_query(9), 256, 9, indexed.sequence.segments};
  plan_promises(indexed.sequence.shape, {&task, 1}, plan);
  size_t items = 0;
  for (const ItemClass& of : plan.classes) items += of.items.size();
  EXPECT_EQ(items, 3 * 2);  // 4 + 4 + 1 queries; 11 pages
  EXPECT_EQ(plan.segments[0].scored, -1);
  EXPECT_EQ(plan.segments[8].scored, 7);
  EXPECT_EQ(plan.segments[9].scored, -1);
}

}  // namespace
}  // namespace smartkv::kernels::cuda
