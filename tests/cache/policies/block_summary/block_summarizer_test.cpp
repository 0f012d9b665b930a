#include "cache/policies/block_summary/block_summarizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

constexpr int64_t kEntryDim = 16;

struct Entries {
  std::vector<float> k, v, bias;
  EntryBlock block() const { return {static_cast<int64_t>(bias.size()), kEntryDim, k.data(), v.data(), bias.data()}; }
};

Entries random_entries(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Entries entries;
  for (int64_t i = 0; i < n * kEntryDim; ++i) {
    entries.k.push_back(normal(random));
    entries.v.push_back(normal(random));
  }
  entries.bias.assign(static_cast<size_t>(n), 0.0f);
  return entries;
}

SampledQueries random_queries(int64_t n, float size) {
  std::mt19937 random(99);
  std::normal_distribution<float> normal(0, size);
  SampledQueries queries;
  queries.n = n;
  for (int64_t i = 0; i < n * kEntryDim; ++i) queries.q.push_back(normal(random));
  queries.log_norm.assign(static_cast<size_t>(n), 12.0f);
  return queries;
}

// Squared error of the block's mass and output, over all queries.
struct Errors {
  double mass = 0, output = 0;
};

Errors errors(const Entries& entries, const BlockSummary& summary, const SampledQueries& queries) {
  Entries made;
  for (size_t i = 0; i < summary.pivots.size(); ++i) {
    const float* k = entries.k.data() + summary.pivots[i] * kEntryDim;
    made.k.insert(made.k.end(), k, k + kEntryDim);
  }
  made.v = summary.v;
  made.bias = summary.bias;
  const std::vector<float> a = attention_matrix(entries.block(), queries), b = attention_matrix(made.block(), queries);
  const size_t n = entries.bias.size(), m = made.bias.size();
  Errors errors;
  for (size_t q = 0; q < static_cast<size_t>(queries.n); ++q) {
    double mass = 0;
    std::vector<double> output(kEntryDim, 0.0);
    for (size_t i = 0; i < n + m; ++i) {
      const bool is_made = i >= n;
      const double share = is_made ? -b[q * m + i - n] : a[q * n + i];
      const float* v = is_made ? made.v.data() + (i - n) * kEntryDim : entries.v.data() + i * kEntryDim;
      mass += share;
      for (size_t d = 0; d < kEntryDim; ++d) output[d] += share * v[d];
    }
    errors.mass += mass * mass;
    for (const double x : output) errors.output += x * x;
  }
  return errors;
}

BlockSummary summary_of(const Entries& entries, const SampledQueries& queries, PivotRule pivots, ValueRule values,
                        BiasRule bias, int64_t count) {
  return summarize({pivots, values, bias}, entries.block(), attention_matrix(entries.block(), queries), count);
}

TEST(BlockSummarizerTest, EveryRuleChoosesDifferentPivotsOfTheBlockAndPutsEachEntryIntoAGroup) {
  const Entries entries = random_entries(40, 1);
  const SampledQueries queries = random_queries(12, 0.5f);
  for (const PivotRule rule : {PivotRule::kPosition, PivotRule::kCosine, PivotRule::kAttention, PivotRule::kMatching}) {
    const BlockSummary summary = summary_of(entries, queries, rule, ValueRule::kMass, BiasRule::kCount, 7);
    ASSERT_EQ(summary.pivots.size(), 7u);
    EXPECT_TRUE(std::is_sorted(summary.pivots.begin(), summary.pivots.end()));
    EXPECT_EQ(std::adjacent_find(summary.pivots.begin(), summary.pivots.end()), summary.pivots.end());
    ASSERT_EQ(summary.group.size(), 40u);
    double mass = 0;
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(summary.group[static_cast<size_t>(summary.pivots[i])], static_cast<int32_t>(i));
      mass += std::exp(static_cast<double>(summary.bias[i]));
    }
    EXPECT_NEAR(mass, 40, 1e-3);  // a bias of log n conserves the mass
  }
}

TEST(BlockSummarizerTest, FarthestPointsFindTheClusters) {
  Entries entries = random_entries(30, 2);
  for (size_t i = 0; i < 30; ++i) {
    for (size_t d = 0; d < kEntryDim; ++d) {
      entries.k[i * kEntryDim + d] = 0.01f * entries.k[i * kEntryDim + d] + (d == i % 3 ? 3.0f : 0.0f);
    }
  }
  const BlockSummary summary = summary_of(entries, {}, PivotRule::kCosine, ValueRule::kMean, BiasRule::kCount, 3);
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(summary.group[i], summary.group[i % 3]);
  EXPECT_NE(summary.group[0], summary.group[1]);
  for (const float bias : summary.bias) EXPECT_FLOAT_EQ(bias, std::log(10.0f));
  const std::vector<float> distance = novelty(entries.block(), summary.pivots);
  EXPECT_LT(*std::max_element(distance.begin(), distance.end()), 0.01f);
}

TEST(BlockSummarizerTest, EqualKeysAreSummarisedExactly) {
  Entries entries = random_entries(12, 3);
  for (size_t i = 0; i < entries.k.size(); ++i) entries.k[i] = entries.k[i % kEntryDim];
  const SampledQueries queries = random_queries(8, 0.5f);
  const BlockSummary summary = summary_of(entries, queries, PivotRule::kCosine, ValueRule::kMean, BiasRule::kCount, 1);
  const Errors found = errors(entries, summary, queries);
  EXPECT_LT(found.mass, 1e-10);
  EXPECT_LT(found.output, 1e-10);
}

TEST(BlockSummarizerTest, FitsLowerTheErrorsThatTheyAreFittedTo) {
  const Entries entries = random_entries(48, 4);
  const SampledQueries queries = random_queries(24, 0.7f);
  const auto of = [&](ValueRule values, BiasRule bias) {
    return errors(entries, summary_of(entries, queries, PivotRule::kCosine, values, bias, 6), queries);
  };
  const Errors none = of(ValueRule::kMass, BiasRule::kNone), count = of(ValueRule::kMass, BiasRule::kCount);
  const Errors fitted = of(ValueRule::kMass, BiasRule::kFitted),
               squares = of(ValueRule::kLeastSquares, BiasRule::kFitted);
  EXPECT_LT(fitted.mass, 0.8 * none.mass);
  EXPECT_LT(fitted.mass, 0.8 * count.mass);
  EXPECT_LT(squares.output, fitted.output);
}

TEST(BlockSummarizerTest, AFittedBiasStaysNearTheCount) {
  const Entries entries = random_entries(20, 5);
  const SampledQueries queries = random_queries(24, 3.0f);
  const BlockSummary count = summary_of(entries, queries, PivotRule::kCosine, ValueRule::kMass, BiasRule::kCount, 4);
  const BlockSummary fitted = summary_of(entries, queries, PivotRule::kCosine, ValueRule::kMass, BiasRule::kFitted, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_LE(std::abs(fitted.bias[i] - count.bias[i]), kMostBias + 1e-4f);
}

TEST(BlockSummarizerTest, SummariesOfSummariesCountWhatTheseStandFor) {
  Entries entries = random_entries(6, 6);
  for (size_t i = 0; i < 6; ++i) entries.bias[i] = std::log(static_cast<float>(i + 1));
  const BlockSummary summary = summary_of(entries, {}, PivotRule::kCosine, ValueRule::kMean, BiasRule::kCount, 2);
  EXPECT_NEAR(std::exp(summary.bias[0]) + std::exp(summary.bias[1]), 21, 1e-4);
}

TEST(BlockSummarizerTest, FewEntriesStayAsTheyAre) {
  const Entries entries = random_entries(3, 7);
  const BlockSummary summary =
      summary_of(entries, random_queries(4, 1), PivotRule::kMatching, ValueRule::kLeastSquares, BiasRule::kFitted, 5);
  EXPECT_EQ(summary.pivots, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(summary.v, entries.v);
  EXPECT_EQ(summary.bias, entries.bias);
}

TEST(BlockSummarizerTest, WithoutQueriesFitsAreTheirPriors) {
  const Entries entries = random_entries(20, 8);
  const BlockSummary fitted =
      summary_of(entries, {}, PivotRule::kCosine, ValueRule::kLeastSquares, BiasRule::kFitted, 4);
  const BlockSummary plain = summary_of(entries, {}, PivotRule::kCosine, ValueRule::kMean, BiasRule::kCount, 4);
  EXPECT_EQ(fitted.v, plain.v);
  EXPECT_EQ(fitted.bias, plain.bias);
}

TEST(EntropyShare, IsThatOfAnEvenSpreadAtMost) {
  EXPECT_NEAR(entropy_share(std::vector<float>{0.2f, 0.2f, 0.2f, 0.2f}), 1, 1e-9);  // masses need not add up to 1
  EXPECT_NEAR(entropy_share(std::vector<float>{0, 3, 0, 0}), 0, 1e-9);
  EXPECT_NEAR(entropy_share(std::vector<float>{1, 0, 1, 0}), 0.5, 1e-9);
  EXPECT_EQ(entropy_share(std::vector<float>{0, 0}), 0);
  EXPECT_EQ(entropy_share(std::vector<float>{1}), 0);
}

}  // namespace
}  // namespace smartkv
