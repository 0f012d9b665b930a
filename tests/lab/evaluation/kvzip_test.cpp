#include "lab/evaluation/kvzip.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/stores/shared_budget_store.h"
#include "cache/stores/staged_sequence.h"
#include "tests/lab/evaluation/evaluation_fixture.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

TEST(Kvzip, ScoresAreTheMostAttentionOfARepetition) {
  const TinyEvaluation tiny;
  const std::vector<TokenId> context = tiny.text(200);
  const std::vector<float> scores = repeat_scores(tiny.model, ByteTokenizer(), context);
  ASSERT_EQ(scores.size(), static_cast<size_t>(tiny.shape.n_layers * tiny.shape.n_kv_heads * 200));
  for (const float score : scores) {
    EXPECT_GT(score, 0.0f);
    EXPECT_LE(score, 1.0f);
  }
  EXPECT_EQ(scores, repeat_scores(tiny.model, ByteTokenizer(), context));
}

// All heads share one budget, in whole units. In each head, every kept token has scored no lower than any lost one,
// apart from sinks and the window.
TEST(Kvzip, KeepsWhatScoredHighest) {
  const TinyEvaluation tiny;
  const std::vector<TokenId> context = tiny.text(400);
  const std::vector<float> scores = repeat_scores(tiny.model, ByteTokenizer(), context);
  const auto policy = make_kvzip_policy(tiny.model, ByteTokenizer(), {{"policy", "kvzip"}, {"tokens", 192}}, context);
  EXPECT_EQ(policy->name(), "kvzip");
  const auto cache = policy->new_sequence(400);
  feed(*tiny.llama, *cache, context, 0, nullptr);
  EXPECT_LE(cache->stats().tokens_kept, 192);
  for (int64_t layer = 0; layer < tiny.shape.n_layers; ++layer) {
    for (int64_t head = 0; head < tiny.shape.n_kv_heads; ++head) {
      const float* const of_head = scores.data() + (layer * tiny.shape.n_kv_heads + head) * 400;
      std::vector<bool> kept(400, false);
      for (const int64_t position : cache->positions(layer, head)) {
        if (position >= 0) kept[static_cast<size_t>(position)] = true;
      }
      float least_kept = 2, most_lost = 0;
      for (size_t t = 4; t < 320; ++t) {
        if (kept[t])
          least_kept = std::min(least_kept, of_head[t]);
        else
          most_lost = std::max(most_lost, of_head[t]);
      }
      EXPECT_GE(least_kept, most_lost) << layer << ", " << head;
    }
  }
}

TEST(Kvzip, NamesWhatIsWrong) {
  const TinyEvaluation tiny;
  const auto error_of = [&](const nlohmann::json& spec) -> std::string {
    try {
      check_kvzip(tiny.shape, spec);
      return "no error";
    } catch (const CacheError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error_of("kvzip"), "no error");
  EXPECT_EQ(error_of({{"policy", "kvzip"}, {"tokens", 512}, {"sinks", 8}}), "no error");
  EXPECT_THAT(error_of({{"policy", "kvzip"}, {"tokens", 10}}),
              testing::HasSubstr("kv_cache.tokens: expected at least"));
  EXPECT_THAT(error_of({{"policy", "kvzip"}, {"scorer", "learned"}}), testing::HasSubstr("kv_cache.scorer"));
  const int64_t most = tiny.llama->config().context_length;
  EXPECT_THROW(repeat_scores(tiny.model, ByteTokenizer(), tiny.text(most - 40)), EvaluationError);
}

}  // namespace
}  // namespace smartkv
