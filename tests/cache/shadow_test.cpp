// Shadow mode: its measurements, and that it does not affect the cache that answers.
#include "cache/shadow/shadow_policy.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/shadow/shadow_sequence.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/random_sensitivity.h"

namespace smartkv {
namespace {

using nlohmann::json;
using Outputs = std::vector<std::vector<float>>;

constexpr int64_t kShadowHeads = 9;

class Shadow : public testing::Test {
 protected:
  std::unique_ptr<KvCachePolicy> policy(const json& spec) { return make_policy({shape_, pool_, &threads_}, spec); }
  Outputs run(SequenceCache* cache, int64_t end, int64_t chunk) {
    return CacheDriver(shape_, kShadowHeads, &threads_).run(cache, end, chunk);
  }
  // Returns the details that shadow mode reports after `end` tokens.
  std::map<std::string, double> details(const json& spec, int64_t end, int64_t prompt = 1, int64_t chunk = 64) {
    const auto made = policy(spec);
    const auto cache = made->new_sequence(prompt);
    run(cache.get(), end, chunk);
    return cache->details();
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, 3, 64, kernels::KvType::kBf16};
  std::shared_ptr<PagePool> pool_ = PagePool::create(shape_);
};

TEST_F(Shadow, OfTheFullCacheIsZero) {
  auto drift = details({{"policy", "full"}, {"shadow", 0.1}}, 305);
  EXPECT_EQ(drift.at("drift_samples"), 30);
  EXPECT_EQ(drift.at("drift_l2_mean"), 0);
  EXPECT_EQ(drift.at("drift_l2_max"), 0);
  EXPECT_EQ(drift.at("drift_l2_layer_1"), 0);
  EXPECT_EQ(drift.at("drift_jaccard_mean"), 1);
}

TEST_F(Shadow, GrowsWithWhatIsLost) {
  auto wide = details({{"policy", "k8v8"}, {"shadow", 0.1}}, 800);
  auto narrow = details({{"policy", "k4v4"}, {"shadow", 0.1}}, 800);
  auto evicted = details({{"policy", "streaming"}, {"tokens", 320}, {"shadow", 0.1}}, 800);
  EXPECT_GT(wide.at("drift_l2_mean"), 0);
  EXPECT_LT(wide.at("drift_l2_mean"), 0.01);
  EXPECT_GT(narrow.at("drift_l2_mean"), wide.at("drift_l2_mean"));
  EXPECT_LT(narrow.at("drift_l2_mean"), 0.2);
  EXPECT_GT(evicted.at("drift_l2_mean"), narrow.at("drift_l2_mean"));
  EXPECT_LT(narrow.at("drift_jaccard_mean"), wide.at("drift_jaccard_mean"));
  EXPECT_LT(evicted.at("drift_jaccard_mean"), narrow.at("drift_jaccard_mean"));
  EXPECT_GT(evicted.at("drift_jaccard_mean"), 0);
}

// Pages of mixed_precision hold each head's tokens by importance, not by position.
TEST_F(Shadow, FindsTheTokensOfMixedPrecision) {
  const json spec = {{"policy", "mixed_precision"}, {"bits", 8.5}, {"horizon", 1024}, {"shadow", 0.1}};
  EXPECT_GT(details(spec, 800).at("drift_jaccard_mean"), 0.95);
}

// The driver's queries, keys and values do not depend on the cache. So its outputs over both caches also give the
// drift.
TEST_F(Shadow, IsTheDistanceOfTheOutputs) {
  const auto full = policy(nullptr), compressed = policy("k4v4");
  const auto full_cache = full->new_sequence(1), cache = compressed->new_sequence(1);
  const Outputs expected = run(full_cache.get(), 400, 64), found = run(cache.get(), 400, 64);
  const auto width = static_cast<size_t>(kShadowHeads * shape_.head_dim);
  std::vector<double> layers(2, 0.0);
  double most = 0;
  for (size_t t = 24; t < 400; t += 25) {
    for (size_t layer = 0; layer < 2; ++layer) {
      double difference = 0, norm = 0;
      for (size_t i = layer * width; i < (layer + 1) * width; ++i) {
        difference += std::pow(double{found[t][i]} - double{expected[t][i]}, 2);
        norm += std::pow(double{expected[t][i]}, 2);
      }
      const double error = std::sqrt(difference / norm);
      layers[layer] += error / 16;
      most = std::max(most, error);
    }
  }
  auto drift = details({{"policy", "k4v4"}, {"shadow", 0.04}}, 400);
  EXPECT_EQ(drift.at("drift_samples"), 16);
  EXPECT_NEAR(drift.at("drift_l2_layer_0"), layers[0], 1e-12);
  EXPECT_NEAR(drift.at("drift_l2_layer_1"), layers[1], 1e-12);
  EXPECT_NEAR(drift.at("drift_l2_mean"), (layers[0] + layers[1]) / 2, 1e-12);
  EXPECT_NEAR(drift.at("drift_l2_max"), most, 1e-12);
}

TEST_F(Shadow, LeavesAnswersAsTheyAreInAnyChunks) {
  for (const json& spec : {json{{"policy", "mixed_precision"}, {"bits", 4.5}, {"horizon", 1024}},
                           json{{"policy", "snapkv"}, {"tokens", 448}}, json{{"policy", "k4v4"}}}) {
    for (const int64_t prompt : {1, 600}) {
      const auto plain = policy(spec);
      const auto expected_cache = plain->new_sequence(prompt);
      const Outputs expected = run(expected_cache.get(), 800, 512);
      std::map<std::string, double> first;
      for (const int64_t chunk : {512, 29}) {
        SCOPED_TRACE(spec.dump() + ", prompt " + std::to_string(prompt) + ", chunk " + std::to_string(chunk));
        json shadowed = spec;
        shadowed["shadow"] = 0.03;
        const auto made = policy(shadowed);
        const auto cache = made->new_sequence(prompt);
        EXPECT_TRUE(run(cache.get(), 800, chunk) == expected);
        const auto drift = cache->details();
        if (first.empty()) first = drift;
        EXPECT_EQ(drift, first);
        EXPECT_GT(drift.at("drift_l2_mean"), 0);
        for (const auto& [name, value] : expected_cache->details()) EXPECT_EQ(drift.at(name), value) << name;
      }
    }
  }
}

TEST_F(Shadow, SamplesOnlyTheLastPageOfThePrompt) {
  const auto made = policy({{"policy", "k4v4"}, {"shadow", 0.1}});
  const auto cache = made->new_sequence(600);
  const TokenRange range = cache->probes(650);
  EXPECT_EQ(range.first, 539);
  EXPECT_EQ(range.end, 650);
  EXPECT_TRUE(cache->probes(500).empty());
  EXPECT_EQ(details({{"policy", "k4v4"}, {"shadow", 0.1}}, 650, 600).at("drift_samples"), 12);
}

TEST_F(Shadow, CountsTheBytesOfBothCaches) {
  const json spec = {{"policy", "streaming"}, {"tokens", 320}};
  const auto plain = policy(spec), full = policy(nullptr);
  json shadowed = spec;
  shadowed["shadow"] = 0.5;
  const auto made = policy(shadowed);
  EXPECT_EQ(made->name(), "streaming");
  const auto plain_cache = plain->new_sequence(1), full_cache = full->new_sequence(1), cache = made->new_sequence(1);
  for (int64_t end = 100; end <= 700; end += 100) {
    run(plain_cache.get(), end, 64);
    run(full_cache.get(), end, 64);
    run(cache.get(), end, 64);
    const CacheStats stats = cache->stats();
    EXPECT_EQ(stats.bytes,
              plain_cache->stats().bytes + full_cache->stats().bytes + ShadowSequence::state_bytes(shape_));
    EXPECT_EQ(stats.bytes - static_cast<int64_t>(cache->details().at("shadow_bytes")), plain_cache->stats().bytes);
    EXPECT_LE(stats.bytes, made->max_bytes(1, end));
    EXPECT_EQ(stats.tokens_kept, plain_cache->stats().tokens_kept);
    EXPECT_EQ(stats.full_bytes, plain_cache->stats().full_bytes);
  }
}

TEST_F(Shadow, FollowsForksAndDroppedTokens) {
  const auto made = policy({{"policy", "k4v4"}, {"shadow", 0.1}});
  const auto cache = made->new_sequence(1);
  run(cache.get(), 300, 64);
  CacheDriver(shape_, kShadowHeads, &threads_).pass(cache.get(), 5, 77);  // no sample falls on these
  cache->truncate(300);
  const auto fork = cache->fork();
  run(fork.get(), 400, 64);
  EXPECT_EQ(cache->details().at("drift_samples"), 30);
  EXPECT_EQ(fork->details(), details({{"policy", "k4v4"}, {"shadow", 0.1}}, 400));
  run(cache.get(), 400, 1);
  EXPECT_EQ(cache->details(), fork->details());
}

TEST_F(Shadow, GoesWithPresetsAndWithoutThreads) {
  const auto preset = policy({{"policy", "balanced"}, {"shadow", 1}});
  const auto cache = preset->new_sequence(1);
  run(cache.get(), 70, 64);
  EXPECT_EQ(cache->details().at("drift_samples"), 70);
  const auto single = make_policy({shape_, pool_}, {{"policy", "full"}, {"shadow", 1}});
  const auto alone = single->new_sequence(1);
  run(alone.get(), 70, 64);
  EXPECT_EQ(alone->details().at("drift_jaccard_mean"), 1);
}

TEST_F(Shadow, SaysNothingOfWhatWasNotSampled) {
  const auto drift = details({{"policy", "k4v4"}, {"shadow", 0.001}}, 100);
  EXPECT_EQ(drift.at("drift_samples"), 0);
  EXPECT_FALSE(drift.contains("drift_l2_mean"));
  EXPECT_FALSE(details("k4v4", 100).contains("drift_samples"));
  EXPECT_FALSE(details({{"policy", "k4v4"}, {"shadow", 0}}, 100).contains("drift_samples"));
}

TEST_F(Shadow, RefusesShares) {
  for (const json& share : {json(-0.5), json(1e-9), json(1.5), json("2%"), json(true)}) {
    try {
      policy({{"policy", "k4v4"}, {"shadow", share}});
      ADD_FAILURE() << share;
    } catch (const CacheError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("kv_cache.shadow: expected a number in "));
      EXPECT_THAT(error.what(), testing::EndsWith("found " + share.dump()));
    }
  }
}

// A promise of k4v4 that its own drift breaks, on a frontier with k8v8 and full.
class ShadowPromise : public Shadow {
 protected:
  // drift: that of k4v4 on the frontier.
  std::unique_ptr<KvCachePolicy> promised(double drift, const char* on_drift = "step_up") {
    Sensitivity known = *random_sensitivity(shape_);
    known.frontier = {{{{"policy", "k4v4"}}, 300, 0.01, 0, drift},
                      {{{"policy", "k8v8"}}, 600, 0.001, 0, drift / 4},
                      {{{"policy", "full"}}, 1200, 0, 0, 0}};
    PolicyContext context{shape_, pool_, &threads_};
    context.load_sensitivity = [found = std::make_shared<const Sensitivity>(known)] { return found; };
    return make_policy(context, {{"policy", "k4v4"}, {"shadow", 0.1}, {"on_drift", on_drift}});
  }
};

TEST_F(ShadowPromise, IsKeptWhileTheDriftIsSmall) {
  const auto made = promised(0.5);
  const auto cache = made->new_sequence(1);
  run(cache.get(), 800, 64);
  const auto details = cache->details();
  EXPECT_EQ(details.at("promise_judged"), 1);
  EXPECT_EQ(details.at("promise_broken"), 0);
  EXPECT_EQ(details.at("promise_steps"), 0);
}

TEST_F(ShadowPromise, IsNotJudgedByFewSamples) {
  const auto made = promised(1e-6);
  const auto cache = made->new_sequence(1);
  run(cache.get(), 155, 64);
  EXPECT_FALSE(cache->details().contains("promise_judged"));
}

TEST_F(ShadowPromise, ThatIsBrokenCanBeReportedOnly) {
  const auto made = promised(1e-6, "report"), plain = policy("k4v4");
  const auto cache = made->new_sequence(1), expected = plain->new_sequence(1);
  EXPECT_TRUE(run(cache.get(), 800, 64) == run(expected.get(), 800, 64));
  EXPECT_EQ(cache->details().at("promise_broken"), 1);
  EXPECT_EQ(cache->details().at("promise_steps"), 0);
}

// The stepped-up cache is what the safer policy would hold of the same keys and values.
TEST_F(ShadowPromise, ThatIsBrokenLeadsToSaferPoliciesUpToFull) {
  const auto made = promised(1e-6), full = policy(nullptr);
  const auto cache = made->new_sequence(1), expected = full->new_sequence(1);
  const Outputs stepped = run(cache.get(), 1000, 64), exact = run(expected.get(), 1000, 64);
  EXPECT_EQ(cache->details().at("promise_steps"), 2);
  EXPECT_EQ(cache->details().at("promise_broken"), 1);
  EXPECT_TRUE(std::equal(stepped.begin() + 900, stepped.end(), exact.begin() + 900));
  EXPECT_FALSE(std::equal(stepped.begin() + 100, stepped.begin() + 200, exact.begin() + 100));
  EXPECT_EQ(cache->stats().bytes - static_cast<int64_t>(cache->details().at("shadow_bytes")), expected->stats().bytes);
  EXPECT_EQ(cache->resume(2000), nullptr);
}

TEST_F(ShadowPromise, StepsAtTheSameBoundariesInAnyChunksAndForks) {
  Outputs expected;
  for (const int64_t chunk : {64, 29, 512}) {
    const auto made = promised(0.004);
    const auto cache = made->new_sequence(1);
    run(cache.get(), 500, chunk);
    const auto fork = cache->fork();
    const Outputs found = run(fork.get(), 1000, chunk);
    EXPECT_GT(fork->details().at("promise_steps"), 0) << chunk;
    EXPECT_LE(fork->stats().bytes, made->max_bytes(1, 1000));
    if (expected.empty()) expected = found;
    EXPECT_TRUE(found == expected) << chunk;
  }
}

TEST_F(ShadowPromise, MaxGrowthCoversAStep) {
  const auto made = promised(1e-6);
  const auto cache = made->new_sequence(1);
  CacheDriver driver(shape_, kShadowHeads, &threads_);
  for (int64_t end = 64; end <= 1000; end += 64) {
    const int64_t before = pool_->bytes_in_use(), most = cache->max_growth(64);
    pool_->restart_peak();
    driver.run(cache.get(), end, 64);
    EXPECT_LE(pool_->peak_bytes() - before, most) << end;
  }
}

}  // namespace
}  // namespace smartkv
