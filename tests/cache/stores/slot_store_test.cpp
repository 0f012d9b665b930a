#include "cache/stores/slot_store.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "cache/stores/staged_sequence.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/stores/named_scorer.h"

namespace smartkv {
namespace {

class SlotStoreTest : public testing::Test {
 protected:
  StagedSequence make(const std::string& scorer, const EvictionOptions& options, int64_t prompt) {
    std::vector<std::unique_ptr<TokenStore>> stores;
    stores.push_back(SlotStoreFactory(options, named_scorer(scorer)).create(context_));
    Boundaries boundaries = options.boundaries();
    boundaries.prompt_tokens = prompt;
    return StagedSequence(context_, boundaries, std::move(stores));
  }
  static const std::vector<int32_t>& slots(const StagedSequence& cache, int64_t layer, int64_t head) {
    return dynamic_cast<const SlotStore&>(cache.store(0)).slot_positions(layer, head);
  }
  // Returns the sinks and the positions with the highest scores among [0, end), by sorting.
  std::set<int32_t> best(const std::string& scorer, int64_t layer, int64_t head, int64_t end,
                         const EvictionOptions& options) {
    std::vector<float> scores(static_cast<size_t>(shape_.n_kv_heads * end));
    std::get<std::shared_ptr<const ContentScorer>>(named_scorer(scorer))
        ->score(context_, {layer, 0, end}, scores.data(), nullptr);
    std::vector<int32_t> order;
    for (int32_t p = static_cast<int32_t>(options.sinks); p < end; ++p) order.push_back(p);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return scores[static_cast<size_t>(head * end + a)] > scores[static_cast<size_t>(head * end + b)];
    });
    std::set<int32_t> result(order.begin(), order.begin() + eviction_slots(options) - options.sinks);
    for (int32_t p = 0; p < options.sinks; ++p) result.insert(p);
    return result;
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, 3, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  CacheDriver driver_{shape_, 9, &threads_};
  EvictionOptions options_{.tokens = 448, .sinks = 4, .window = 128, .exact_prefill = false};
};

TEST_F(SlotStoreTest, SlotsHoldTheBestTokensOfEachHead) {
  StagedSequence cache = make("random", options_, 0);
  driver_.run(&cache, 1024, 64);
  for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      const std::vector<int32_t> found = slots(cache, layer, head);
      EXPECT_EQ(std::set<int32_t>(found.begin(), found.end()), best("random", layer, head, 1024 - 128, options_));
      EXPECT_EQ(static_cast<int64_t>(found.size()), eviction_slots(options_));
    }
  }
  EXPECT_NE(slots(cache, 0, 0), slots(cache, 0, 1));  // equal size, different content
  EXPECT_EQ(cache.stats().tokens_kept, eviction_slots(options_) + 128);
}

TEST_F(SlotStoreTest, OneBulkPruneKeepsWhatStreamingKeeps) {
  EvictionOptions exact = options_;
  exact.exact_prefill = true;
  for (const char* scorer : {"random", "key_norm"}) {
    StagedSequence bulk = make(scorer, exact, 1000), streaming = make(scorer, options_, 1000);
    driver_.run(&bulk, 1000, 512);
    EXPECT_EQ(bulk.tokens(), 1000);
    driver_.run(&streaming, 1000, 512);
    // Both compact next at 1024. From then on they hold the same tokens.
    driver_.run(&bulk, 1088, 64);
    driver_.run(&streaming, 1088, 64);
    for (int64_t head = 0; head < shape_.n_kv_heads; ++head) {
      const auto a = slots(bulk, 1, head), b = slots(streaming, 1, head);
      EXPECT_EQ(std::set<int32_t>(a.begin(), a.end()), std::set<int32_t>(b.begin(), b.end())) << scorer;
    }
  }
}

TEST_F(SlotStoreTest, ExactPrefillKeepsThePromptUntilItsEnd) {
  options_.exact_prefill = true;
  StagedSequence cache = make("random", options_, 1000);
  driver_.run(&cache, 999, 512);
  EXPECT_EQ(cache.stats().tokens_kept, 999);
  driver_.run(&cache, 1000, 512);
  EXPECT_LE(cache.stats().tokens_kept, options_.tokens);
}

// A pass is scored at once, whether it is committed or may be rolled back. Scores wait neither for the prompt's end nor
// for a question that shares the prompt.
TEST_F(SlotStoreTest, APromptIsScoredAsItComesAndForgetsWhatIsCutBack) {
  options_.exact_prefill = true;
  StagedSequence cache = make("random", options_, 1000);
  const auto scores = [&] {
    const int64_t pages = dense_bytes(shape_, whole_pages(cache.tokens()));
    return (cache.stats().bytes - pages) / static_cast<int64_t>(sizeof(float)) / (shape_.n_layers * shape_.n_kv_heads);
  };
  driver_.pass(&cache, 500);
  EXPECT_EQ(scores(), 500);
  cache.truncate(300);
  EXPECT_EQ(scores(), 300);
  driver_.pass(&cache, 690);
  // The window is not scored. It counts in whole pages.
  EXPECT_EQ(scores(), (1000 - 128) / kernels::kPageTokens * kernels::kPageTokens);
  driver_.run(&cache, 1000, 512);
  StagedSequence straight = make("random", options_, 1000);
  driver_.run(&straight, 1000, 512);
  for (int64_t head = 0; head < shape_.n_kv_heads; ++head) EXPECT_EQ(slots(cache, 1, head), slots(straight, 1, head));
}

TEST_F(SlotStoreTest, NeverHoldsMoreThanItsTokens) {
  for (const char* scorer : {"random", "attention"}) {
    StagedSequence cache = make(scorer, options_, 0);
    for (int64_t n = 100; n <= 1500; n += 100) {
      driver_.run(&cache, n, 512);
      EXPECT_LE(cache.stats().tokens_kept, options_.tokens) << scorer;
      const auto positions = slots(cache, 0, 0);
      for (int32_t sink = 0; sink < options_.sinks && !positions.empty(); ++sink) {
        EXPECT_NE(std::find(positions.begin(), positions.end(), sink), positions.end()) << scorer;
      }
    }
  }
}

TEST_F(SlotStoreTest, NamesWhatDoesNotFit) {
  options_.tokens = 200;
  try {
    check_eviction(options_);
    FAIL();
  } catch (const CacheError& error) {
    EXPECT_NE(std::string(error.what()).find("kv_cache.tokens: expected at least 256"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(make_gate_scorer(context_, "", false), CacheError);  // no model that could load gates
}

}  // namespace
}  // namespace smartkv
