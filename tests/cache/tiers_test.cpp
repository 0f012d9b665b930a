// Compares what a cache reports as kept with what its policy promises.
#include "cache/tiers.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "cache/policy.h"
#include "cache/quantized_page.h"
#include "tests/cache/cache_driver.h"

namespace smartkv {
namespace {

constexpr int64_t kTierTokens = 1500;

class Tiers : public testing::Test {
 protected:
  Tiers() {
    context_.rope = [](int64_t, float* cos, float* sin) {
      std::fill_n(cos, 32, 1.0f);
      std::fill_n(sin, 32, 0.0f);
    };
  }
  std::unique_ptr<SequenceCache> filled(const nlohmann::json& spec, int64_t tokens = kTierTokens) {
    policies_.push_back(make_policy(context_, spec));
    auto cache = policies_.back()->new_sequence(tokens / 2);
    CacheDriver(shape_, 4, &pool_).run(cache.get(), tokens, 256);
    return cache;
  }
  TierShares tokens_of(const SequenceCache& cache) const { return tier_use(cache, shape_).tokens; }

  ThreadPool pool_{1};
  CacheShape shape_{2, 2, 64, kernels::KvType::kF32};
  PolicyContext context_{shape_, PagePool::create(shape_)};
  std::vector<std::unique_ptr<KvCachePolicy>> policies_;
};

double sum(const TierShares& shares) { return std::accumulate(shares.begin(), shares.end(), 0.0); }

TEST_F(Tiers, HaveNames) {
  EXPECT_EQ(tier_name(kExactTier), "exact");
  EXPECT_EQ(tier_name(4), "4_bit");
  EXPECT_EQ(tier_name(kSummarisedTier), "summarised");
  EXPECT_EQ(tier_name(kEvictedTier), "evicted");
}

TEST_F(Tiers, AFullCacheIsExact) {
  const auto cache = filled("full");
  EXPECT_EQ(tokens_of(*cache)[kExactTier], kTierTokens);
  const auto spans = tier_spans(*cache, shape_, 0, 256);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].end, kTierTokens);
  EXPECT_EQ(spans[0].shares[kExactTier], 1);
}

TEST_F(Tiers, CodesCountByTheirWidth) {
  const auto cache = filled("k4v4");
  const TierShares tokens = tokens_of(*cache);
  EXPECT_EQ(tokens[8], 64);  // the page with the sinks
  EXPECT_GT(tokens[4], kTierTokens / 2);
  EXPECT_EQ(tokens[4] + tokens[8] + tokens[kExactTier], kTierTokens);
  const auto spans = tier_spans(*cache, shape_, 1, 256);
  ASSERT_EQ(spans.size(), 3u);  // sinks, quantized pages, the tail
  EXPECT_EQ(spans[0].shares[8], 1);
  EXPECT_EQ(spans[1].shares[4], 1);
  EXPECT_EQ(spans[2].shares[kExactTier], 1);
}

TEST_F(Tiers, WhatNothingStandsForIsEvicted) {
  const auto cache = filled({{"policy", "streaming"}, {"tokens", 256}});
  const TierShares tokens = tokens_of(*cache);
  EXPECT_EQ(tokens[kExactTier], static_cast<double>(cache->stats().tokens_kept));
  EXPECT_EQ(tokens[kExactTier] + tokens[kEvictedTier], kTierTokens);
  const auto spans = tier_spans(*cache, shape_, 0, 256);
  ASSERT_EQ(spans.front().first, 0);
  EXPECT_GT(spans.front().shares[kExactTier], 0);  // sinks
  EXPECT_EQ(spans[1].shares[kEvictedTier], 1);
  EXPECT_EQ(spans.back().shares[kExactTier], 1);
}

TEST_F(Tiers, SummariesStandForAllThatTheyTook) {
  const auto cache = filled({{"policy", "block_summary"}, {"tokens", 448}, {"window", 64}});
  const TierShares tokens = tokens_of(*cache);
  EXPECT_GT(tokens[kSummarisedTier], kTierTokens / 4);
  EXPECT_NEAR(tokens[kEvictedTier], 0, 0.01 * kTierTokens);
  EXPECT_NEAR(sum(tokens), kTierTokens, 1e-6 * kTierTokens);
}

TEST_F(Tiers, OfIndexedPagesTheRowsCount) {
  const double first = kernels::kPageTokens;  // the sinks' page is exact, as is the tail
  const TierShares exact = tokens_of(*filled("sparse"));
  EXPECT_EQ(exact[kExactTier], kTierTokens);
  for (const auto& [kept, bits] : {std::pair{"k8v8", 8}, {"k4v4", 4}}) {
    const TierShares tokens = tokens_of(*filled({{"policy", "sparse"}, {"kept", kept}}));
    EXPECT_EQ(tokens[static_cast<size_t>(bits)] + tokens[kExactTier], kTierTokens) << kept;
    EXPECT_LE(tokens[kExactTier], first + 2 * kernels::kPageTokens) << kept;
  }
}

TEST_F(Tiers, SpansCoverTheSequenceAndAreFew) {
  for (const nlohmann::json& spec :
       {nlohmann::json("full"), nlohmann::json("compact"), nlohmann::json{{"policy", "random"}, {"tokens", 256}},
        nlohmann::json{{"policy", "block_summary"}, {"tokens", 448}, {"window", 64}}}) {
    const auto cache = filled(spec);
    int64_t at = 0;
    TierShares total = {};
    const auto spans = tier_spans(*cache, shape_, 0, 64);
    EXPECT_LE(spans.size(), 64u);
    for (const TierSpan& span : spans) {
      EXPECT_EQ(span.first, at);
      EXPECT_NEAR(sum(span.shares), 1, 1e-9);
      for (size_t tier = 0; tier < kTiers; ++tier)
        total[tier] += span.shares[tier] * static_cast<double>(span.end - span.first);
      at = span.end;
    }
    EXPECT_EQ(at, kTierTokens) << spec;
    const CacheShape one_layer{1, shape_.n_kv_heads, shape_.head_dim, shape_.type};
    const TierShares counted = tier_use(*cache, one_layer).tokens;
    for (size_t tier = 0; tier < kTiers; ++tier)
      EXPECT_NEAR(total[tier], counted[tier], 1e-6 * kTierTokens) << spec << ' ' << tier_name(tier);
  }
}

TEST_F(Tiers, BytesAreThoseOfThePages) {
  const auto dense = [&](double tokens) {
    return std::ceil(tokens / kernels::kPageTokens) *
           static_cast<double>(kernels::kPageTokens * shape_.bytes_per_token());
  };
  const TierUse full = tier_use(*filled("full"), shape_);
  EXPECT_EQ(full.bytes[kExactTier], dense(kTierTokens));
  EXPECT_EQ(sum(full.bytes), full.bytes[kExactTier]);

  const TierUse codes = tier_use(*filled("k4v4"), shape_);
  const auto page = [&](int bits) {
    return static_cast<double>(shape_.n_layers * quantized_bytes(shape_, uniform_layout(shape_, bits, bits)));
  };
  EXPECT_EQ(codes.bytes[8], page(8));
  EXPECT_EQ(codes.bytes[4], codes.tokens[4] / kernels::kPageTokens * page(4));
  EXPECT_EQ(codes.bytes[kExactTier], dense(codes.tokens[kExactTier]));

  const TierUse evicted = tier_use(*filled({{"policy", "streaming"}, {"tokens", 256}}), shape_);
  EXPECT_EQ(evicted.bytes[kEvictedTier], 0);
  EXPECT_EQ(evicted.bytes[kExactTier], dense(evicted.tokens[kExactTier]));

  const auto summaries = filled({{"policy", "block_summary"}, {"tokens", 448}, {"window", 64}});
  const TierUse summarised = tier_use(*summaries, shape_);
  EXPECT_GT(summarised.bytes[kSummarisedTier], 0);
  EXPECT_LE(sum(summarised.bytes), static_cast<double>(summaries->stats().bytes));
}

TEST_F(Tiers, AnEmptyCacheHasNone) {
  const auto policy = make_policy(context_, "full");
  const auto cache = policy->new_sequence(10);
  EXPECT_EQ(sum(tokens_of(*cache)), 0);
  EXPECT_TRUE(tier_spans(*cache, shape_, 0, 256).empty());
}

}  // namespace
}  // namespace smartkv
