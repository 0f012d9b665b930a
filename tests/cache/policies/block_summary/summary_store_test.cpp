#include "cache/policies/block_summary/summary_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "cache/stores/staged_sequence.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/policy_error.h"

namespace smartkv {
namespace {

class SummaryStoreTest : public testing::Test {
 protected:
  SummaryStoreTest() {
    context_.rope = [](int64_t position, float* cos, float* sin) {
      for (int64_t j = 0; j < 32; ++j) {
        cos[j] = std::cos(static_cast<float>(position) / static_cast<float>(j + 1));
        sin[j] = std::sin(static_cast<float>(position) / static_cast<float>(j + 1));
      }
    };
  }

  std::unique_ptr<SequenceCache> run(const nlohmann::json& spec, int64_t prompt, int64_t tokens) {
    policies_.push_back(make_policy(context_, spec));
    auto cache = policies_.back()->new_sequence(prompt);
    CacheDriver(shape_, 6, &threads_).run(cache.get(), tokens, 64);
    return cache;
  }
  static const SummaryStore& store(const SequenceCache& cache, size_t i = 0) {
    return dynamic_cast<const SummaryStore&>(dynamic_cast<const StagedSequence&>(cache).store(i));
  }

  ThreadPool threads_{2};
  CacheShape shape_{2, 2, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  std::vector<std::unique_ptr<KvCachePolicy>> policies_;  // they must outlive their sequences
};

TEST_F(SummaryStoreTest, ConservesMassExactly) {
  for (const int64_t prompt : {1, 900}) {
    const auto cache =
        run({{"policy", "block_summary"}, {"tokens", 320}, {"window", 64}, {"salient", 4}, {"salience", "novelty"}},
            prompt, 2000);
    const SummaryStore& summaries = store(*cache);
    const int64_t gone = 2000 / 64 * 64 - 64;
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t head = 0; head < 2; ++head) EXPECT_EQ(summaries.head(layer, head).tokens(), gone);
    }
    const auto details = cache->details();
    EXPECT_EQ(details.at("summarized_tokens"), static_cast<double>(gone));
    EXPECT_EQ(details.at("mass_error"), 0);
    EXPECT_GT(details.at("consolidations"), 0);
    EXPECT_GT(details.at("summary_levels"), 1);
  }
}

TEST_F(SummaryStoreTest, StaysWithinItsTokens) {
  const auto cache =
      run({{"policy", "block_summary"}, {"tokens", 320}, {"window", 64}, {"salient", 4}, {"salience", "value_norm"}}, 1,
          2500);
  EXPECT_LE(store(*cache).entries(0), 320 - 128);
  EXPECT_GT(cache->details().at("watermark_hits"), 0);
  EXPECT_LE(cache->stats().tokens_kept, 320);
}

TEST_F(SummaryStoreTest, LevelsGrowLikeTheLogarithm) {
  const nlohmann::json spec = {
      {"policy", "block_summary"}, {"window", 64},      {"r", 4}, {"level", 16}, {"bias", "count"},
      {"values", "mean"},          {"pivots", "cosine"}};
  const auto at = [&](int64_t tokens) { return run(spec, 1, tokens)->stats().tokens_kept; };
  const int64_t short_one = at(1000), long_one = at(8040);  // their tails are equally long
  EXPECT_LE(long_one, short_one + 3 * 16 + 16);
  const auto cache = run(spec, 1, 3000);
  for (const auto& level : store(*cache).head(1, 1).levels) EXPECT_LE(level.size(), 16u);
}

TEST_F(SummaryStoreTest, OldSummariesStandForMoreThanNewOnes) {
  const auto cache = run({{"policy", "block_summary"}, {"tokens", 320}, {"window", 64}}, 1, 3000);
  const SummaryHead& head = store(*cache).head(0, 1);
  ASSERT_GT(head.levels.size(), 2u);
  double last = 0;
  for (const auto& level : head.levels) {
    if (level.empty()) continue;
    double tokens = 0;
    for (const SummaryEntry& entry : level) tokens += entry.tokens;
    EXPECT_GT(tokens / static_cast<double>(level.size()), last);
    last = tokens / static_cast<double>(level.size());
  }
}

TEST_F(SummaryStoreTest, OutliersAndSinksAreExact) {
  const auto cache = run({{"policy", "block_summary"},
                          {"tokens", 320},
                          {"window", 64},
                          {"salient", 6},
                          {"outliers", 32},
                          {"salience", "value_norm"},
                          {"sinks", 3}},
                         1, 1200);
  const SummaryHead& head = store(*cache).head(1, 0);
  EXPECT_EQ(head.outliers.size(), 32u);
  ASSERT_EQ(head.sinks.size(), 3u);
  for (const auto* list : {&head.sinks, &head.outliers}) {
    for (const SummaryEntry& entry : *list) {
      EXPECT_EQ(entry.tokens, 1);
      EXPECT_EQ(entry.bias, 0);
    }
  }
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(head.sinks[static_cast<size_t>(i)].position, i);
}

TEST_F(SummaryStoreTest, MoreTokensStayExactWhereAttentionIsSpreadEvenly) {
  SummaryOptions options;
  options.salient = 2;
  options.salient_most = 10;
  EXPECT_EQ(options.salient_at(0), 2);
  EXPECT_EQ(options.salient_at(0.5), 6);
  EXPECT_EQ(options.salient_at(1), 10);
  nlohmann::json spec = {{"policy", "block_summary"}, {"window", 64}, {"salient", 2}, {"salience", "value_norm"}};
  const auto outliers = [&](const SequenceCache& cache, int64_t layer, int64_t head) {
    return store(cache).head(layer, head).outliers.size();
  };
  const size_t blocks = (1200 / 64 * 64 - 64 - 4) / 64;  // blocks that left the window, without the sinks
  const auto fixed = run(spec, 1, 1200);
  EXPECT_EQ(outliers(*fixed, 0, 0), 2 * blocks);
  spec["salient_most"] = 10;
  const auto adaptive = run(spec, 1, 1200);
  for (int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_GT(outliers(*adaptive, layer, 0), 6 * blocks);  // random keys: attention is spread, but not evenly
    EXPECT_LT(outliers(*adaptive, layer, 0), 10 * blocks);
    EXPECT_EQ(outliers(*adaptive, layer, 0), outliers(*adaptive, layer, 1));
  }
  EXPECT_EQ(adaptive->details().at("mass_error"), 0);
}

// Each KV head drops its own weak outliers, even if the other heads have none, and all heads keep equally many entries.
TEST_F(SummaryStoreTest, AWeakOutlierGoesInItsOwnLayerAndHead) {
  nlohmann::json spec = {{"policy", "block_summary"}, {"window", 64}, {"salient", 4}, {"outliers", 200}, {"level", 64},
                         {"salience", "value_norm"},  {"decay", 0.02}};
  const auto scores = [](const SequenceCache& cache, int64_t layer, int64_t head) {
    std::vector<float> all;
    for (const SummaryEntry& entry : store(cache).head(layer, head).outliers) all.push_back(entry.score);
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto everything = run(spec, 1, 1400);
  // `eps` lies above a quarter of the outliers of one KV head. The other heads have other scores.
  const std::vector<float> first = scores(*everything, 0, 0);
  ASSERT_GT(first.size(), 40u);
  spec["eps"] = first[first.size() / 4];
  const auto shed = run(spec, 1, 1400);
  std::set<int64_t> weak_before;
  for (int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(store(*shed).head(layer, 0).entries(), store(*shed).head(layer, 1).entries());
    for (int64_t head = 0; head < 2; ++head) {
      EXPECT_EQ(store(*shed).head(layer, head).tokens(), store(*shed).taken());  // no mass is lost
      const auto weak = [&](const SequenceCache& cache, int64_t made_before) {
        const std::vector<SummaryEntry>& outliers = store(cache).head(layer, head).outliers;
        return std::count_if(outliers.begin(), outliers.end(), [&](const SummaryEntry& entry) {
          return entry.position < made_before && entry.score < spec["eps"].get<float>();
        });
      };
      // Two kinds are not dropped yet: outliers of the last block, and outliers that fell below `eps` at the last
      // boundary.
      EXPECT_EQ(weak(*shed, 1400 - 4 * 64), 0) << "layer " << layer << ", head " << head;
      weak_before.insert(weak(*everything, 1400 - 4 * 64));
    }
  }
  EXPECT_GT(*weak_before.begin(), 0);
  EXPECT_GT(weak_before.size(), 1u);  // the counts differ
  EXPECT_EQ(shed->details().at("mass_error"), 0);
  EXPECT_LE(shed->details().at("outlier_entries"), everything->details().at("outlier_entries"));
}

TEST_F(SummaryStoreTest, PlacesAreUsedOnce) {
  const auto cache =
      run({{"policy", "block_summary"}, {"tokens", 320}, {"window", 64}, {"salient", 4}, {"salience", "attention"}},
          700, 1700);
  for (int64_t h = 0; h < 2; ++h) {
    SummaryHead head = store(*cache).head(1, h);
    std::set<int32_t> places;
    head.for_each([&](const SummaryEntry& entry) { EXPECT_TRUE(places.insert(entry.place).second); });
    EXPECT_EQ(static_cast<int64_t>(places.size()), store(*cache).entries(0));
    EXPECT_EQ(*places.rbegin(), store(*cache).entries(0) - 1);
  }
}

TEST_F(SummaryStoreTest, ALevelsOldEntriesGoToQuantizedPages) {
  for (const char* bits : {"8", "4"}) {
    nlohmann::json spec = {
        {"policy", "block_summary"}, {"tokens", 576}, {"window", 64}, {"salient", 4}, {"outliers", 32},
        {"salience", "value_norm"}};
    const auto plain = run(spec, 1, 3000);
    spec["summary_bits"] = bits;
    const auto cache = run(spec, 1, 3000);
    const SummaryStore& summaries = store(*cache);
    const auto details = cache->details();
    EXPECT_EQ(details.at("mass_error"), 0);
    EXPECT_EQ(details.at("summarized_tokens"), 3000 / 64 * 64 - 64);
    EXPECT_GT(details.at("coded_entries"), 0);
    EXPECT_LE(summaries.entries(0), 576 - 128);
    EXPECT_LT(cache->stats().bytes, plain->stats().bytes);
    const SummaryHead& head = summaries.head(1, 0);
    int64_t coded = 0;
    for (const auto& level : head.levels) {
      const auto in_quantized = [](const SummaryEntry& entry) { return entry.place == SummaryEntry::kInQuantized; };
      const auto end = std::find_if_not(level.begin(), level.end(), in_quantized);
      EXPECT_EQ((end - level.begin()) % kernels::kPageTokens, 0);
      EXPECT_LT(level.end() - end, kernels::kPageTokens);
      EXPECT_EQ(std::find_if(end, level.end(), in_quantized), level.end());
      coded += end - level.begin();
    }
    EXPECT_EQ(static_cast<double>(coded), details.at("coded_entries"));
  }
}

TEST_F(SummaryStoreTest, CodedEntriesKeepTheirPlaceInTheView) {
  const auto cache = run({{"policy", "block_summary"}, {"tokens", 576}, {"window", 64}, {"summary_bits", 8}}, 1, 2500);
  std::vector<kernels::KvSegment> segments;
  cache->view(0, 0, &segments);
  ASSERT_EQ(segments[0].format, kernels::KvSegment::Format::kQuantized);
  const std::vector<int64_t> positions = cache->positions(0, 1);
  const SummaryHead& head = store(*cache).head(0, 1);
  size_t level = 0;
  while (head.levels[level].size() < kernels::kPageTokens) ++level;  // the first level that fills a page
  for (size_t i = 0; i < kernels::kPageTokens; ++i) {
    EXPECT_EQ(positions[i], head.levels[level][i].position);
    // The bias is that of KV head 1.
    EXPECT_EQ(segments[0].bias[kernels::kPageTokens + static_cast<int64_t>(i)], head.levels[level][i].bias);
  }
}

TEST_F(SummaryStoreTest, RetentionSparesAShareOfTheDecayUntilItExpires) {
  SummaryOptions options;
  options.salient = 1;
  options.outliers = 8;
  options.decay = 0.5;
  const DenseLayer kept(context_.pool);
  const SampledQueries queries;
  SummaryHead head;
  head.outliers = {{1, 1, 0, 8, 0, 0, 0}, {2, 1, 0, 8, 0.75f, 100, 1}, {3, 1, 0, 8, 1, 100, 2}, {4, 1, 0, 8, 1, 64, 3}};
  const LevelPages none;
  HeadCompaction compaction(options, {shape_, kept, none, context_.pool->backend()}, 0, queries, &head);
  compaction.begin(64, 0, options.salient);
  EXPECT_EQ(head.outliers[0].score, 4);
  EXPECT_EQ(head.outliers[1].score, 7);
  EXPECT_EQ(head.outliers[2].score, 8);
  EXPECT_EQ(head.outliers[3].score, 4);
}

TEST_F(SummaryStoreTest, TakesWhatEvictionLoses) {
  const auto cache = run(
      {{"policy", "gated_eviction"}, {"scorer", "key_norm"}, {"tokens", 448}, {"lost", {{"tokens", 128}}}}, 1, 1500);
  const SummaryStore& lost = store(*cache, 1);
  const int64_t gone = 1500 / 64 * 64 - 64, slots = 448 - 128 - 128;
  EXPECT_EQ(lost.head(0, 0).tokens(), gone - slots);
  EXPECT_LE(lost.entries(0), 128);
  EXPECT_LE(cache->stats().tokens_kept, 448);
}

TEST_F(SummaryStoreTest, LayersOutsideTheRangeKeepEveryToken) {
  const auto cache = run({{"policy", "block_summary"}, {"tokens", 320}, {"window", 64}, {"layers", "1-1"}}, 1, 1000);
  EXPECT_EQ(store(*cache).entries(0), 1000 / 64 * 64 - 64);
  EXPECT_LE(store(*cache).entries(1), 192);
  std::vector<kernels::KvSegment> segments, full;
  cache->view(0, 0, &segments);
  const auto everything = run("full", 1, 1000);
  everything->view(0, 0, &full);
  ASSERT_EQ(segments.size(), full.size());
  for (size_t i = 0; i < full.size(); ++i) {
    EXPECT_EQ(segments[i].bias, nullptr);
    EXPECT_EQ(segments[i].tokens, full[i].tokens);
    if (full[i].tokens < kernels::kPageTokens) continue;
    EXPECT_EQ(std::memcmp(segments[i].k, full[i].k, 4096), 0) << i;
  }
}

TEST_F(SummaryStoreTest, ErrorsNameTheParameter) {
  const auto error = [&](const nlohmann::json& spec) { return policy_error(context_, spec); };
  EXPECT_EQ(error({{"policy", "block_summary"}, {"tokens", 100}}),
            "kv_cache.tokens: expected at least 256 (room for a block of 64 tokens, 0 outliers, a group of 16 "
            "summaries and 128 "
            "tail tokens), found 100");
  EXPECT_EQ(error({{"policy", "block_summary"}, {"pivots", "mean"}}),
            "kv_cache.pivots: expected one of \"position\", \"cosine\", \"attention\", \"matching\", found \"mean\"");
  EXPECT_EQ(error({{"policy", "block_summary"}, {"r", 65}}), "kv_cache.r: expected an integer in [1, 64], found 65");
  EXPECT_EQ(error({{"policy", "block_summary"}, {"summary_bits", "3"}}),
            "kv_cache.summary_bits: expected one of 16, 8, 4, found \"3\"");
  EXPECT_EQ(error({{"policy", "block_summary"}, {"salient", 4}, {"salience", "novelty"}, {"salient_most", 3}}),
            "kv_cache.salient_most: expected an integer in [4, 63], found 3");
  EXPECT_EQ(error({{"policy", "block_summary"}, {"layers", "1-2"}}),
            "kv_cache.layers: expected LO-HI with layers from 0 to 1, found \"1-2\"");
  EXPECT_EQ(error({{"policy", "gated_eviction"}, {"scorer", "key_norm"}, {"lost", "everything"}}),
            "kv_cache.lost: expected one of \"nothing\", \"summaries\", found \"everything\"");
  EXPECT_EQ(error({{"policy", "gated_eviction"}, {"scorer", "key_norm"}, {"lost", {{"window", 3}}}}).substr(0, 21),
            "kv_cache.lost.window:");
  EXPECT_EQ(error({{"policy", "gated_eviction"}, {"scorer", "key_norm"}, {"lost", {{"tokens", 1024}}}}),
            "kv_cache.lost.tokens: expected at most 832, which leaves 64 slots for exact tokens, found 1024");
}

}  // namespace
}  // namespace smartkv
