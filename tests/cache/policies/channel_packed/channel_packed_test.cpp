#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "cache/policies/channel_packed/channel_selection.h"
#include "cache/policies/channel_packed/channel_store.h"
#include "cache/policies/channel_packed/fidelity.h"
#include "cache/stages/staged_sequence.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/policy_error.h"

namespace smartkv {
namespace {

TEST(ChannelSelectionTest, PairsGoTogetherAndQueriesCount) {
  std::vector<float> q2(16, 1.0f), k2(16, 1.0f);
  k2[3] = 9;        // a large key that
  q2[3] = 0.01f;    // no query looks at
  q2[12] = 5;       // the other half of pair 4
  const std::vector<float> worth = query_key_worth(q2, k2);
  EXPECT_FLOAT_EQ(worth[4], 6);
  EXPECT_FLOAT_EQ(worth[3], 1.09f);
  const std::vector<uint8_t> order = channel_order(worth, 4), by_size = channel_order(magnitude_worth(k2), 4);
  EXPECT_EQ(std::vector<uint8_t>(order.begin(), order.begin() + 4), (std::vector<uint8_t>{0, 4, 8, 12}));
  EXPECT_EQ(std::vector<uint8_t>(by_size.begin(), by_size.begin() + 4), (std::vector<uint8_t>{0, 3, 8, 11}));
  std::vector<uint8_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (uint8_t i = 0; i < 16; ++i) EXPECT_EQ(sorted[i], i);
  EXPECT_DOUBLE_EQ(retained(order, by_size, 4), 0.5);
  EXPECT_DOUBLE_EQ(retained(order, order, 4), 1);
}

TEST(FidelityTest, EqualScoresAreFaithful) {
  const std::vector<float> scores = {0.5f, 3, -1, 2, 0};
  Fidelity fidelity;
  add_fidelity(scores, scores, 2, &fidelity);
  EXPECT_DOUBLE_EQ(fidelity.overlap, 1);
  EXPECT_DOUBLE_EQ(fidelity.margin_drift, 0);
  EXPECT_NEAR(fidelity.kl, 0, 1e-12);
  EXPECT_TRUE(fidelity.passes({}));
}

TEST(FidelityTest, MeasuresWhatDiffers) {
  Fidelity fidelity;
  add_fidelity(std::vector<float>{std::log(0.5f), std::log(0.25f), std::log(0.25f)},
               std::vector<float>{std::log(0.25f), std::log(0.5f), std::log(0.25f)}, 2, &fidelity);
  EXPECT_NEAR(fidelity.kl, 0.25 * std::log(2.0), 1e-6);
  EXPECT_NEAR(fidelity.margin_drift, 0, 1e-6);
  add_fidelity(std::vector<float>{5, 4, 0, 0}, std::vector<float>{0, 0, 4, 5}, 2, &fidelity);
  EXPECT_NEAR(fidelity.overlap, 0.5, 1e-9);
  EXPECT_EQ(fidelity.queries, 2);
  EXPECT_FALSE(fidelity.passes({}));
}

TEST(FidelityTest, WhatIsNotANumberFails) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Fidelity fidelity;
    add_fidelity(std::vector<float>{1, 2, 3}, std::vector<float>{1, bad, 3}, 2, &fidelity);
    EXPECT_FALSE(fidelity.passes({}));
    EXPECT_TRUE(std::isnan(fidelity.kl));
  }
  EXPECT_FALSE(Fidelity{}.passes({}));
}

// Keys and queries live in few channels; from `turn` on in others.
class ChannelStoreTest : public testing::Test {
 protected:
  static constexpr int64_t kDim = 64, kHeads = 2;

  std::unique_ptr<SequenceCache> start(const nlohmann::json& spec) {
    policy_ = make_policy(context_, spec);
    return policy_->new_sequence(1);
  }
  void run(SequenceCache* cache, int64_t end, int64_t turn) {
    kernels::AttentionScratch scratch;
    while (cache->tokens() < end) {
      const int64_t position = cache->tokens(), first = position < turn ? 0 : 16;
      std::minstd_rand random(static_cast<uint32_t>(position) + 1);
      std::normal_distribution<float> normal;
      cache->reserve(1);
      for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
        std::vector<float> row;
        for (int64_t i = 0; i < 3 * kHeads * kDim; ++i) {
          const bool loud = i % 32 >= first && i % 32 < first + 12;
          row.push_back(normal(random) * (i >= 2 * kHeads * kDim || loud ? 1.5f : 0.02f));
        }
        cache->write(layer, {row.data() + kHeads * kDim, row.data() + 2 * kHeads * kDim, static_cast<int64_t>(row.size()), 0, 1});
        if (cache->probes(1).empty()) continue;
        std::vector<kernels::KvSegment> segments;
        cache->view(layer, 1, &segments);
        const kernels::AttentionShape attention{kHeads, kHeads, kDim, 0.125f, shape_.type};
        kernels::AttentionMassTask task{row.data(), static_cast<int64_t>(row.size()), 1, segments, nullptr};
        std::vector<float> mass(static_cast<size_t>(kernels::attention_mass_floats(attention, task)));
        task.mass = mass.data();
        kernels::attention_mass(threads_, attention, {&task, 1}, scratch);
        cache->observe(layer, {position, std::span(row).first(kHeads * kDim), mass});
      }
      cache->advance(1);
      cache->commit(position + 1);
    }
  }
  static const ChannelStore& store(const SequenceCache& cache) {
    return dynamic_cast<const ChannelStore&>(dynamic_cast<const StagedSequence&>(cache).store(0));
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, kHeads, kDim, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  std::unique_ptr<KvCachePolicy> policy_;
  const nlohmann::json spec_ = {{"policy", "channel_packed"}, {"key_channels", 24}, {"update_every", 128},
                                {"stable_updates", 2}, {"check_every", 128}, {"decay", 0.5}};
};

TEST_F(ChannelStoreTest, StartsFullAndPacksOnceTheChannelsAreSettled) {
  const auto cache = start(spec_);
  run(cache.get(), 320, 1 << 20);
  EXPECT_FALSE(store(*cache).packed(0));
  const int64_t before = cache->stats().bytes;
  run(cache.get(), 640, 1 << 20);
  EXPECT_TRUE(store(*cache).packed(0));
  EXPECT_TRUE(store(*cache).packed(1));
  EXPECT_LT(cache->stats().bytes, 2 * before);
  EXPECT_EQ(cache->details().at("channel_backoffs"), 0);
  EXPECT_GT(cache->details().at("channel_checks"), 0);
  EXPECT_LT(cache->details().at("channel_kl"), 0.001);
}

TEST_F(ChannelStoreTest, BacksOffWhenTheQueriesTurnToOtherChannelsAndProbesAgain) {
  const auto cache = start(spec_);
  run(cache.get(), 700, 700);
  ASSERT_TRUE(store(*cache).packed(0));
  const double bits = cache->details().at("bits_k");
  run(cache.get(), 1000, 700);
  EXPECT_EQ(cache->details().at("channel_backoffs"), 2);  // each layer once
  EXPECT_FALSE(store(*cache).packed(0));
  EXPECT_GT(cache->details().at("bits_k"), bits);
  run(cache.get(), 2000, 700);
  EXPECT_TRUE(store(*cache).packed(0));  // settled on the new ones
}

TEST_F(ChannelStoreTest, AGuardThatNothingPassesKeepsPagesFull) {
  nlohmann::json spec = spec_;
  spec["most_kl"] = 0;
  const auto cache = start(spec);
  run(cache.get(), 900, 1 << 20);
  EXPECT_GT(cache->details().at("channel_backoffs"), 0);
}

TEST_F(ChannelStoreTest, BitsChooseChannels) {
  const auto cache = start({{"policy", "channel_packed"}, {"bits", 4.5}});
  EXPECT_EQ(policy_error(context_, {{"policy", "channel_packed"}, {"bits", 4.5}, {"key_bits", "8"}}),
            "kv_cache.bits: expected either bits, or key_bits, found both");
  EXPECT_NE(policy_error(context_, {{"policy", "channel_packed"}, {"bits", 1}}).find("kv_cache.bits: expected at least"),
            std::string::npos);
  EXPECT_EQ(policy_error(context_, {{"policy", "channel_packed"}, {"key_channels", 30}}),
            "kv_cache.key_channels: expected a multiple of 4, found 30");
}

}  // namespace
}  // namespace smartkv
