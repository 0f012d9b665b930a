#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policies/channel_packed/channel_selection.h"
#include "cache/policies/channel_packed/channel_store.h"
#include "cache/policies/channel_packed/cut_store.h"
#include "cache/policies/channel_packed/fidelity.h"
#include "cache/stores/staged_sequence.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/policy_error.h"

namespace smartkv {
namespace {

TEST(ChannelSelectionTest, PairsGoTogetherAndQueriesCount) {
  std::vector<float> q2(16, 1.0f), k2(16, 1.0f);
  k2[3] = 9;      // large in the keys,
  q2[3] = 0.01f;  // but small in the queries
  q2[12] = 5;     // the other half of pair 4
  const std::vector<float> worth = query_key_worth(q2, k2);
  EXPECT_FLOAT_EQ(worth[4], 6);
  EXPECT_FLOAT_EQ(worth[3], 1.09f);
  const std::vector<uint8_t> order = channel_order(worth, 4), by_size = channel_order(magnitude_worth(k2), 4);
  EXPECT_EQ(std::vector<uint8_t>(order.begin(), order.begin() + 4), (std::vector<uint8_t>{0, 4, 8, 12}));
  EXPECT_EQ(std::vector<uint8_t>(by_size.begin(), by_size.begin() + 4), (std::vector<uint8_t>{0, 3, 8, 11}));
  std::vector<uint8_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (uint8_t i = 0; i < 16; ++i) EXPECT_EQ(sorted[i], i);
}

TEST(ChannelSelectionTest, RetainedIsTheShareOfTheWorthThatIsStillThere) {
  const std::vector<float> pairs = {4, 3, 2, 1}, later = {4, 1, 2, 3};
  const std::vector<uint8_t> keys = channel_order(pairs, 4), values = single_channel_order(pairs, 2);
  EXPECT_DOUBLE_EQ(retained(keys, pairs, 4), 1);
  EXPECT_DOUBLE_EQ(retained(keys, later, 4), 5.0 / 7);
  EXPECT_DOUBLE_EQ(retained(values, later, 2), 5.0 / 7);
  EXPECT_DOUBLE_EQ(retained(values, std::vector<float>(4), 2), 1);  // no channel has any worth
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

// Keys and queries use few channels, and other ones from position `turn` on.
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
        cache->write(layer, {row.data() + kHeads * kDim, row.data() + 2 * kHeads * kDim,
                             static_cast<int64_t>(row.size()), 0, 1});
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
  static const CutStore& cut_store(const SequenceCache& cache) {
    return dynamic_cast<const CutStore&>(dynamic_cast<const StagedSequence&>(cache).store(0));
  }
  static const ChannelStore& store(const SequenceCache& cache) {
    return dynamic_cast<const ChannelStore&>(dynamic_cast<const StagedSequence&>(cache).store(0));
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, kHeads, kDim, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  std::unique_ptr<KvCachePolicy> policy_;
  const nlohmann::json spec_ = {
      {"policy", "channel_packed"}, {"storage", "quantized"}, {"key_channels", 24}, {"update_every", 128},
      {"stable_updates", 2},        {"check_every", 128},     {"decay", 0.5}};
};

TEST_F(ChannelStoreTest, CodesIsTheOldNameOfItsStorage) {
  nlohmann::json spec = spec_;
  spec["storage"] = "codes";
  const auto cache = start(spec);
  run(cache.get(), 640, 1 << 20);
  EXPECT_TRUE(store(*cache).packed(0));
}

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
  EXPECT_EQ(cache->details().at("channel_backoffs"), 2);  // once for each layer
  EXPECT_FALSE(store(*cache).packed(0));
  EXPECT_GT(cache->details().at("bits_k"), bits);
  run(cache.get(), 2000, 700);
  EXPECT_TRUE(store(*cache).packed(0));  // settled on the new channels
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
            "kv_cache.bits: expected either bits or key_bits, found both");
  EXPECT_NE(
      policy_error(context_, {{"policy", "channel_packed"}, {"bits", 1}}).find("kv_cache.bits: expected at least"),
      std::string::npos);
  EXPECT_EQ(policy_error(context_, {{"policy", "channel_packed"}, {"key_channels", 30}, {"key_bits", 8}}),
            "kv_cache.key_channels: expected a multiple of 4, found 30");
  EXPECT_EQ(policy_error(context_, {{"policy", "channel_packed"}, {"key_channels", 40}}),
            "kv_cache.key_channels: expected a multiple of 16, found 40");
}

const nlohmann::json kCut = {
    {"policy", "channel_packed"}, {"key_channels", 32}, {"value_channels", 48}, {"update_every", 128},
    {"check_every", 256},         {"decay", 0.5},       {"retention", 0.5}};

TEST_F(ChannelStoreTest, ExactPagesAreTheFullCachesUntilTheyAreCut) {
  const auto full_policy = make_policy(context_, nullptr);
  const auto full = full_policy->new_sequence(1), cache = start(kCut);
  run(cache.get(), 320, 1 << 20);
  run(full.get(), 320, 1 << 20);
  ASSERT_FALSE(cut_store(*cache).cut(0));
  EXPECT_EQ(cache->details().at("bits_k"), 16);
  EXPECT_EQ(cache->details().at("packed_layers"), 0);
  std::vector<kernels::KvSegment> exact, expected;
  cache->view(1, 0, &exact);
  full->view(1, 0, &expected);
  ASSERT_EQ(exact.size(), expected.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(std::memcmp(exact[i].k, expected[i].k, static_cast<size_t>(2 * exact[i].head_stride)), 0) << i;
  }
}

TEST_F(ChannelStoreTest, CutPagesHoldTheChosenChannelsAlone) {
  const auto cache = start(kCut);
  run(cache.get(), 1024, 1 << 20);
  ASSERT_TRUE(cut_store(*cache).cut(0));
  ASSERT_TRUE(cut_store(*cache).cut(1));
  std::vector<kernels::KvSegment> segments;
  cache->view(0, 0, &segments);
  EXPECT_EQ(segments.front().format, kernels::KvSegment::Format::kDense);  // the sinks' page
  EXPECT_EQ(segments[1].format, kernels::KvSegment::Format::kCut);
  // 14 pages with 32 of 64 channels of K and 48 of V, the sinks' page, the window, and the policy's state.
  const int64_t page = kernels::kPageTokens * shape_.bytes_per_token();
  EXPECT_NEAR(static_cast<double>(cache->stats().bytes),
              14.0 * static_cast<double>(page) * 80 / 128 + 2 * static_cast<double>(page),
              static_cast<double>(page) / 2);
  EXPECT_LT(cache->details().at("channel_kl"), 0.001);
  EXPECT_NEAR(cache->details().at("bits_v"), 16 * (14 * 0.75 + 1) / 15, 1e-9);
}

TEST_F(ChannelStoreTest, KeysOrValuesAloneAreCut) {
  for (const char* key : {"key_channels", "value_channels"}) {
    nlohmann::json spec = kCut;
    spec[key] = kDim;
    const auto cache = start(spec);
    run(cache.get(), 900, 1 << 20);
    ASSERT_TRUE(cut_store(*cache).cut(0)) << key;
    EXPECT_EQ(cache->details().at(std::string(key) == "key_channels" ? "bits_k" : "bits_v"), 16);
  }
  nlohmann::json all = kCut;
  all["key_channels"] = all["value_channels"] = kDim;
  const auto cache = start(all);
  run(cache.get(), 900, 1 << 20);
  EXPECT_FALSE(cut_store(*cache).cut(0));
}

TEST_F(ChannelStoreTest, WhatTheQueriesMissIsNotCut) {
  nlohmann::json spec = kCut;
  spec["most_kl"] = 0;
  const auto cache = start(spec);
  run(cache.get(), 900, 1 << 20);
  EXPECT_FALSE(cut_store(*cache).cut(0));
  EXPECT_GT(cache->details().at("channel_kl"), 0);
}

TEST_F(ChannelStoreTest, ACheckIsWantedAndFollowed) {
  const auto cache = start(kCut);
  run(cache.get(), 600, 1 << 20);
  ASSERT_TRUE(cut_store(*cache).cut(0));
  EXPECT_FALSE(cache->wants_check());
  run(cache.get(), 900, 1 << 20);
  EXPECT_TRUE(cache->wants_check());
  // If the logits are alike, pages are cut again at the next boundary.
  const std::vector<float> exact = {3, 2, 1, 0}, near = {3, 2, 1.01f, 0}, far = {0, 1, 2, 3};
  for (const auto& own : {near, far}) {
    const auto again = policy_->new_sequence(1);
    again->follow({.tokens = 900, .checks = 1});
    run(again.get(), 900, 1 << 20);
    EXPECT_FALSE(cut_store(*again).cut(0));
    EXPECT_FALSE(again->wants_check());
    const LogitCheck check = again->judge(exact, own);
    EXPECT_EQ(check.tokens, 900);
    EXPECT_EQ(check.checks, 2);
    EXPECT_EQ(check.passed, own == near);
    EXPECT_EQ(check.backoffs, own == near ? 0 : 2);
    run(again.get(), 1000, 1 << 20);
    EXPECT_EQ(cut_store(*again).cut(0), own == near);
    EXPECT_EQ(again->details().at("channel_checks"), 2);
    EXPECT_GT(again->details().at("logit_kl"), 0);
    // Another cache that follows the check reaches the same state.
    const auto later = policy_->new_sequence(1);
    later->follow(check);
    run(later.get(), 1000, 1 << 20);
    EXPECT_EQ(cut_store(*later).cut(0), own == near);
    EXPECT_EQ(later->stats().bytes, again->stats().bytes);
    run(again.get(), 1600, 1 << 20);
    EXPECT_TRUE(cut_store(*again).cut(0));  // settled again
    EXPECT_TRUE(again->wants_check());
  }
}

TEST_F(ChannelStoreTest, KnownWorthCutsFromTheFirstBoundaryOn) {
  auto worth = std::make_shared<ChannelWorth>();
  worth->keys.assign(2 * kHeads * kDim / 2, 0.0f);
  worth->values.assign(2 * kHeads * kDim, 0.0f);
  for (size_t i = 0; i < worth->keys.size(); ++i) worth->keys[i] = i % (kDim / 2) < 16 ? 1 : 0;
  for (size_t i = 0; i < worth->values.size(); ++i) worth->values[i] = i % kDim >= 16 ? 1 : 0;
  context_.load_worth = [worth](const std::string& name) {
    EXPECT_EQ(name, "mine");
    return worth;
  };
  nlohmann::json spec = kCut;
  spec["worth"] = "mine";
  const auto cache = start(spec);
  run(cache.get(), 256, 1 << 20);
  ASSERT_TRUE(cut_store(*cache).cut(0));
  std::vector<kernels::KvSegment> segments;
  cache->view(0, 0, &segments);
  EXPECT_EQ(segments[1].value_order[0], 16);
  EXPECT_EQ(segments[1].channel_order[31], 47);
}

}  // namespace
}  // namespace smartkv
