#include "cache/stores/shared_budget_store.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/forwarding_cache.h"
#include "cache/stores/staged_sequence.h"
#include "kernels/elementwise.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/stores/named_scorer.h"

namespace smartkv {
namespace {

// Random scores, higher in some layers and heads than in others. One token in ten is important to questions.
class UnequalScorer final : public ContentScorer {
 public:
  explicit UnequalScorer(bool knows_importance) : knows_importance_(knows_importance) {}
  std::string_view name() const override { return "unequal"; }
  bool knows_importance() const override { return knows_importance_; }
  void score(const PolicyContext& context, const ScoredTokens& tokens, float* scores,
             float* importance) const override {
    RandomScorer().score(context, tokens, scores, nullptr);
    for (int64_t i = 0; i < context.shape.n_kv_heads * tokens.n; ++i) {
      scores[i] *= static_cast<float>(1 + tokens.layer) / static_cast<float>(1 + i / tokens.n);
      const int64_t position = tokens.first + i % tokens.n;
      if (importance != nullptr)
        importance[i] = static_cast<float>(position % 10 == 5 ? 1000 + position : position % 7);
    }
  }

 private:
  bool knows_importance_;
};

class SharedBudgetStoreTest : public testing::Test {
 protected:
  StagedSequence make(int64_t prompt) {
    std::vector<std::unique_ptr<TokenStore>> stores;
    stores.push_back(
        SharedBudgetStoreFactory({options_, 0.1}, std::make_shared<UnequalScorer>(knows_importance_)).create(context_));
    Boundaries boundaries = options_.boundaries();
    boundaries.prompt_tokens = prompt;
    return StagedSequence(context_, boundaries, std::move(stores));
  }
  // Returns a full cache of the same tokens.
  std::unique_ptr<SequenceCache> everything(int64_t n) {
    auto cache = full_->new_sequence(n);
    CacheDriver(shape_, 9, &threads_).run(cache.get(), n, 512);
    return cache;
  }
  static std::set<int32_t> slots(const StagedSequence& cache, int64_t layer, int64_t head) {
    const std::vector<int32_t> found =
        dynamic_cast<const SharedBudgetStore&>(cache.store(0)).kept_positions(layer, head);
    const std::set<int32_t> result(found.begin(), found.end());
    EXPECT_EQ(result.size(), found.size());
    return result;
  }
  // Returns the scores of tokens [0, end): [n_kv_heads, end].
  std::vector<float> scores(int64_t layer, int64_t end) {
    std::vector<float> scores(static_cast<size_t>(shape_.n_kv_heads * end));
    UnequalScorer(false).score(context_, {layer, 0, end}, scores.data(), nullptr);
    return scores;
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, 3, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  std::unique_ptr<KvCachePolicy> full_ = make_policy(context_, nullptr);
  CacheDriver driver_{shape_, 9, &threads_};
  EvictionOptions options_{.tokens = 448, .sinks = 4, .window = 128};
  bool knows_importance_ = false;
};

TEST_F(SharedBudgetStoreTest, OneThresholdForAllAndTheBestOfEachHead) {
  StagedSequence cache = make(1500);
  driver_.run(&cache, 1500, 512);
  const int64_t end = (1500 - 128) / kernels::kPageTokens * kernels::kPageTokens;
  std::vector<float> all;
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    const std::vector<float> of_layer = scores(layer, end);
    all.insert(all.end(), of_layer.begin(), of_layer.end());
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  const int64_t heads = shape_.n_layers * shape_.n_kv_heads, budget = heads * eviction_slots(options_);
  const float threshold = all[static_cast<size_t>(budget - 1)];
  int64_t kept = 0;
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    const std::vector<float> of_layer = scores(layer, end);
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      const float* score = of_layer.data() + head * end;
      const std::set<int32_t> found = slots(cache, layer, head);
      const auto n = static_cast<int64_t>(found.size());
      EXPECT_EQ(n % kernels::kPageTokens, 0);
      const auto worth = std::count_if(score, score + end, [&](float s) { return s >= threshold; });
      EXPECT_LT(std::abs(n - worth), 2 * kernels::kPageTokens) << layer << ", " << head;
      kept += n;
      std::vector<int32_t> order;
      for (int32_t p = static_cast<int32_t>(options_.sinks); p < end; ++p) order.push_back(p);
      std::sort(order.begin(), order.end(),
                [&](int32_t a, int32_t b) { return score[a] != score[b] ? score[a] > score[b] : a > b; });
      std::set<int32_t> best(order.begin(), order.begin() + n - options_.sinks);
      for (int32_t p = 0; p < options_.sinks; ++p) best.insert(p);
      EXPECT_EQ(found, best) << layer << ", " << head;
    }
  }
  EXPECT_EQ(kept, budget);
  EXPECT_GT(slots(cache, 1, 0).size(), 2 * slots(cache, 0, 2).size());
}

TEST_F(SharedBudgetStoreTest, WhatMattersToQuestionsStaysWhateverItsScore) {
  knows_importance_ = true;
  StagedSequence cache = make(1000);
  driver_.run(&cache, 1000, 512);
  const int64_t end = (1000 - 128) / kernels::kPageTokens * kernels::kPageTokens;
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    int64_t important = 0;
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      for (const int32_t position : slots(cache, layer, head)) important += position % 10 == 5 ? 1 : 0;
    }
    EXPECT_GT(important, shape_.n_kv_heads * end / 10 * 3 / 4) << layer;
  }
}

// When heads gain and lose units, the contents of kept tokens move with them.
TEST_F(SharedBudgetStoreTest, TokensKeepTheirContents) {
  StagedSequence cache = make(700);
  const auto expected = everything(1500);
  std::vector<kernels::KvSegment> all;
  std::vector<float> k(64), v(64), k2(64), v2(64);
  for (const int64_t n : {700, 900, 1200, 1500}) {
    driver_.run(&cache, n, 512);
    for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
      all.clear();
      expected->view(layer, 0, &all);
      std::vector<kernels::KvSegment> segments;
      cache.view(layer, 0, &segments);
      for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
        const std::vector<int64_t> positions = cache.positions(layer, head);
        size_t entry = 0;
        for (const kernels::KvSegment& segment : segments) {
          for (int64_t slot = 0; slot < segment.tokens; ++slot, ++entry) {
            const int64_t position = positions[entry];
            ASSERT_EQ(position != SequenceCache::kOtherHead, segment.is_of(head));
            if (position == SequenceCache::kOtherHead) continue;
            kernels::load_kv(shape_.type, 64, segment, head, slot, k.data(), v.data());
            kernels::load_kv(shape_.type, 64, all[static_cast<size_t>(position / 64)], head, position % 64, k2.data(),
                             v2.data());
            ASSERT_EQ(k, k2) << n << ": layer " << layer << ", head " << head << ", token " << position;
            ASSERT_EQ(v, v2);
          }
        }
        ASSERT_EQ(entry, positions.size());
      }
    }
  }
}

TEST_F(SharedBudgetStoreTest, WithinTheBudgetEverybodyKeepsEverything) {
  StagedSequence cache = make(300);
  driver_.run(&cache, 384, 512);
  EXPECT_EQ(cache.stats().tokens_kept, 384);
  std::vector<kernels::KvSegment> segments;
  cache.view(0, 0, &segments);
  for (const kernels::KvSegment& segment : segments) EXPECT_EQ(segment.kv_head, -1);
}

TEST_F(SharedBudgetStoreTest, HoldsNoMoreThanHeadsOfEqualSizeWould) {
  for (const bool exact : {true, false}) {
    options_.exact_prefill = exact;
    StagedSequence cache = make(500);
    for (int64_t n = 500; n <= 2000; n += 100) {
      driver_.run(&cache, n, 512);
      EXPECT_LE(cache.stats().tokens_kept, options_.tokens) << n;
      for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
        const std::set<int32_t> kept = slots(cache, 0, head);
        for (int32_t sink = 0; sink < options_.sinks; ++sink) EXPECT_TRUE(kept.contains(sink)) << n << ", " << head;
      }
    }
  }
}

// Values a token by the mass that it received since the last boundary.
class MassScorer final : public AttentionScorer {
 public:
  std::string_view name() const override { return "mass"; }
  int64_t n_probes() const override { return 16; }
  void score(std::span<const float>, std::span<float>) const override {}
};

// Sums the mass that each position receives.
class MassWatcher final : public ForwardingCache {
 public:
  MassWatcher(SequenceCache* cache, int64_t n_heads) : ForwardingCache({cache}), n_heads_(n_heads) {}
  void observe(int64_t layer, const Probe& probe) override {
    const auto stride = static_cast<int64_t>(probe.mass.size()) / n_heads_;
    for (int64_t head = 0; head < n_heads_; ++head) {
      std::vector<int64_t> seen = positions(layer, head);
      for (int64_t next = tokens(); static_cast<int64_t>(seen.size()) < stride; ++next) seen.push_back(next);
      for (int64_t i = 0; i < stride; ++i) {
        const int64_t position = seen[static_cast<size_t>(i)];
        if (position != kOtherHead) mass[{layer, head}][position] += probe.mass[static_cast<size_t>(head * stride + i)];
      }
    }
    ForwardingCache::observe(layer, probe);
  }
  std::unique_ptr<SequenceCache> fork() const override { return nullptr; }
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }

  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, float>> mass;

 private:
  int64_t n_heads_;
};

TEST_F(SharedBudgetStoreTest, AttentionSaysWhatEachHeadKeeps) {
  std::vector<std::unique_ptr<TokenStore>> stores;
  stores.push_back(make_slot_store(true, {options_}, std::make_shared<MassScorer>())->create(context_));
  Boundaries boundaries = options_.boundaries();
  boundaries.prompt_tokens = 900;
  StagedSequence cache(context_, boundaries, std::move(stores));
  MassWatcher watcher(&cache, shape_.n_kv_heads);
  int64_t compared = 0;
  for (int64_t boundary = cache.next_boundary(); boundary < 1400; boundary = cache.next_boundary()) {
    watcher.mass.clear();
    driver_.run(&watcher, boundary, 512);
    const int64_t leaving = boundary / kernels::kPageTokens * kernels::kPageTokens - 128;
    for (const auto& [where, masses] : watcher.mass) {
      const std::set<int32_t> kept = slots(cache, where.first, where.second);
      std::vector<std::pair<float, int32_t>> order;
      for (const auto& [position, mass] : masses) {
        if (position >= options_.sinks && position < leaving) order.emplace_back(mass, static_cast<int32_t>(position));
      }
      std::sort(order.begin(), order.end(), std::greater<>());
      ASSERT_GE(order.size() + static_cast<size_t>(options_.sinks), kept.size());
      std::set<int32_t> best;
      for (int32_t p = 0; p < options_.sinks; ++p) best.insert(p);
      for (const auto& candidate : order) {
        if (best.size() < kept.size()) best.insert(candidate.second);
      }
      EXPECT_EQ(kept, best) << where.first << ", " << where.second << " at " << boundary;
      ++compared;
    }
  }
  EXPECT_GT(compared, 30);
}

TEST_F(SharedBudgetStoreTest, RefusesScoresThatDoNotCompare) {
  EXPECT_THROW(make_slot_store(true, {options_}, make_key_norm_scorer()), CacheError);
  EXPECT_NE(make_slot_store(false, {options_}, make_key_norm_scorer()), nullptr);
}

// A KV head has room for 832 tokens: two pages of the window, one that is being filled, two of dense slots, and 512
// tokens in packed units of 8 bits.
class PackedSlotStoreTest : public SharedBudgetStoreTest {
 protected:
  PackedSlotStoreTest() {
    options_.tokens = 832;
    options_.packed = uniform_layout(shape_, 8, 8);
  }
  double packed_tokens(const StagedSequence& cache) { return cache.details().at("packed_tokens"); }
};

TEST_F(PackedSlotStoreTest, WhatDenseSlotsCannotHoldIsPackedBeforeAnythingIsLost) {
  StagedSequence cache = make(200);
  driver_.run(&cache, 256, 512);
  EXPECT_EQ(packed_tokens(cache), 0);
  for (int64_t n = 320; n <= 704; n += 64) {
    driver_.run(&cache, n, 512);
    EXPECT_EQ(cache.stats().tokens_kept, n);
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      EXPECT_EQ(static_cast<int64_t>(slots(cache, 1, head).size()),
                (n - 128) / kernels::kPageTokens * kernels::kPageTokens);
    }
  }
  EXPECT_GT(packed_tokens(cache), 400);
}

// Compares the scores of the kept tokens with the highest that as many tokens could have. Tokens that have lost their
// worth must not keep others out only because their unit is kept.
TEST_F(PackedSlotStoreTest, KeepsNearlyTheBest) {
  StagedSequence cache = make(1500);
  for (const int64_t n : {1500, 2048, 3008}) {
    driver_.run(&cache, n, 512);
    const int64_t end = (n - 128) / kernels::kPageTokens * kernels::kPageTokens;
    std::vector<float> all;
    double kept = 0, best = 0;
    int64_t n_kept = 0;
    for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
      const std::vector<float> of_layer = scores(layer, end);
      all.insert(all.end(), of_layer.begin(), of_layer.end());
      for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
        const std::set<int32_t> found = slots(cache, layer, head);
        n_kept += static_cast<int64_t>(found.size());
        for (const int32_t p : found) kept += of_layer[static_cast<size_t>(head * end + p)];
        for (int32_t sink = 0; sink < options_.sinks; ++sink) EXPECT_TRUE(found.contains(sink)) << n << ", " << head;
      }
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    for (int64_t i = 0; i < n_kept; ++i) best += all[static_cast<size_t>(i)];
    EXPECT_LE(cache.stats().tokens_kept, options_.tokens);
    EXPECT_GT(cache.stats().tokens_kept, options_.tokens - 128);
    EXPECT_GT(kept, 0.8 * best) << n;
  }
}

TEST_F(PackedSlotStoreTest, PackedTokensAreTheirOwnButForTheirCodes) {
  StagedSequence cache = make(1500);
  const auto expected = everything(2000);
  driver_.run(&cache, 2000, 512);
  std::vector<kernels::KvSegment> all, segments;
  std::vector<float> k(64 * 64), v(k.size()), k2(64), v2(64);
  expected->view(1, 0, &all);
  cache.view(1, 0, &segments);
  int64_t packed = 0, first = 0;
  for (const kernels::KvSegment& segment : segments) {
    if (segment.format == kernels::KvSegment::Format::kQuantized) {
      ++packed;
      const int64_t head = segment.kv_head;
      const std::vector<int64_t> positions = cache.positions(1, head);
      ASSERT_TRUE(std::is_sorted(positions.begin() + first, positions.begin() + first + 64));
      kernels::dequantize_page(segment.quantized, 64, nullptr, segment.k, k.data(), v.data());
      for (int64_t i = 0; i < 64; ++i) {
        const int64_t position = positions[static_cast<size_t>(first + i)];
        ASSERT_NE(position, SequenceCache::kOtherHead);
        kernels::load_kv(shape_.type, 64, all[static_cast<size_t>(position / 64)], head, position % 64, k2.data(),
                         v2.data());
        for (size_t d = 0; d < 64; ++d) {
          ASSERT_NEAR(k[static_cast<size_t>(i) * 64 + d], k2[d], 0.05);
          ASSERT_NEAR(v[static_cast<size_t>(i) * 64 + d], v2[d], 0.05);
        }
      }
    }
    first += segment.tokens;
  }
  EXPECT_GT(packed, 10);
}

}  // namespace
}  // namespace smartkv
