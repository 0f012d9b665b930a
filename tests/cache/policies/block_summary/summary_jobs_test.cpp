#include "cache/policies/block_summary/summary_jobs.h"

#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cache/quantized_page.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using kernels::TokenPlace;

// A quantized page, two slots of a dense page between which a row lies, and what the host reads of them.
class SummaryJobs : public testing::Test {
 protected:
  static constexpr int64_t kDim = 16, kHalf = kDim * kPageTokens * 4;

  SummaryJobs() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> k(kPageTokens * kDim), v(k.size()), row(2 * kDim);
    for (auto* const values : {&k, &v, &row}) {
      for (float& x : *values) x = normal(random);
    }
    std::byte* const page = page_.data();
    backend_.write(shape_.type, 1, kDim, {k.data(), v.data(), kDim, 0, kPageTokens, page, page + kHalf, 2 * kHalf});
    std::vector<TokenPlace> places;
    for (int32_t slot = 0; slot < kPageTokens; ++slot) places.push_back(slot_at(slot));
    quantized_.emplace(pool_, uniform_layout(shape_, 8, 8), nullptr, kernels::PageSource{places});
    segment_ = quantized_->segment();
    backend_.upload(row.data(), row.size() * sizeof(float), row_.data());
    tokens_ = {slot_at(3), {row_.data(), row_.data() + kDim * sizeof(float), TokenPlace::kRow}, slot_at(60)};

    k_.resize(k.size());
    v_.resize(v.size());
    quantized_->read(shape_, 0, 1, k_.data(), v_.data());
    for (const int64_t slot : {3, 60}) {
      if (slot == 60) {
        k_.insert(k_.end(), row.begin(), row.begin() + kDim);
        v_.insert(v_.end(), row.begin() + kDim, row.end());
      }
      k_.insert(k_.end(), k.begin() + slot * kDim, k.begin() + (slot + 1) * kDim);
      v_.insert(v_.end(), v.begin() + slot * kDim, v.begin() + (slot + 1) * kDim);
    }
    for (int64_t i = 0; i < kEntries; ++i) bias_.push_back(0.1f * static_cast<float>(i % 3));
    queries_ = {2, {k_.begin(), k_.begin() + 2 * kDim}, {20.0f, 21.0f}};
  }

  TokenPlace slot_at(int32_t slot) { return {page_.data(), page_.data() + kHalf, slot}; }
  HeadEntries entries() const { return {{&segment_, 1}, 0, tokens_, bias_, &queries_}; }
  EntryBlock block() const { return {kEntries, kDim, k_.data(), v_.data(), bias_.data()}; }

  static constexpr int64_t kEntries = kPageTokens + 3;
  const CacheShape shape_{1, 1, kDim, kernels::KvType::kF32};
  const std::shared_ptr<PagePool> pool_ = PagePool::create(shape_);
  kernels::KvBackend& backend_ = *pool_->backend();
  kernels::PageMemory page_{pool_->backend(), 2 * kHalf}, row_{pool_->backend(), 2 * kDim * sizeof(float)};
  std::optional<QuantizedPage> quantized_;
  kernels::KvSegment segment_;
  std::vector<TokenPlace> tokens_;
  std::vector<float> k_, v_, bias_;
  SampledQueries queries_;
};

TEST_F(SummaryJobs, SummarizeEntriesWhereverTheyAre) {
  constexpr int64_t kSummaries = 5;
  kernels::PageMemory memory(pool_->backend(), 2 * kSummaries * kDim * sizeof(float));
  std::vector<TokenPlace> to;
  for (int64_t i = 0; i < kSummaries; ++i) {
    float* const k = reinterpret_cast<float*>(memory.data()) + 2 * i * kDim;
    to.push_back({k, k + kDim, TokenPlace::kRow});
  }
  const SummaryRule rule{PivotRule::kAttention, ValueRule::kMass, BiasRule::kCount};
  std::vector<int32_t> pivots(kSummaries), group(kEntries);
  std::vector<float> bias(kSummaries);
  const EntrySummary job{entries(), rule, to, pivots.data(), group.data(), bias.data()};
  summarize(backend_, shape_, {&job, 1});
  backend_.finish();
  const BlockSummary expected = summarize(rule, block(), attention_matrix(block(), queries_), kSummaries);
  EXPECT_EQ(pivots, expected.pivots);
  EXPECT_EQ(group, expected.group);
  EXPECT_EQ(bias, expected.bias);
  for (size_t i = 0; i < to.size(); ++i) {
    for (size_t d = 0; d < kDim; ++d) {
      EXPECT_EQ(static_cast<const float*>(to[i].k)[d], k_[static_cast<size_t>(pivots[i]) * kDim + d]);
      EXPECT_EQ(static_cast<const float*>(to[i].v)[d], expected.v[i * kDim + d]);
    }
  }
}

TEST_F(SummaryJobs, MeasureHowMuchAnEntryStandsOut) {
  const std::vector<float> attention = attention_matrix(block(), queries_);
  const SummaryRule rule{PivotRule::kCosine, ValueRule::kMean, BiasRule::kNone};
  const std::vector<float> distance = novelty(block(), summarize(rule, block(), {}, 7).pivots);
  std::vector<float> norms(kEntries), received(kEntries), far(kEntries);
  const EntryStats jobs[] = {{entries(), EntryStat::kValueNorm, 0, norms.data()},
                             {entries(), EntryStat::kAttention, 0, received.data()},
                             {entries(), EntryStat::kNovelty, 7, far.data()}};
  entry_stats(backend_, shape_, jobs);
  backend_.finish();
  for (size_t i = 0; i < kEntries; ++i) {
    double squares = 0;
    for (size_t d = 0; d < kDim; ++d) squares += std::pow(static_cast<double>(v_[i * kDim + d]), 2);
    EXPECT_NEAR(norms[i], std::sqrt(squares), 1e-4);
    EXPECT_EQ(received[i], attention[i] + attention[kEntries + i]);
  }
  EXPECT_EQ(far, distance);
}

}  // namespace
}  // namespace smartkv
