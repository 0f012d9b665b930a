#include "lab/evaluation/simulated_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/lab/evaluation/evaluation_fixture.h"

namespace smartkv {
namespace {

// Returns the logits after the last token, fed in passes of at most `step` tokens.
std::vector<float> logits_after(const TinyEvaluation& tiny, SequenceCache& cache, std::span<const TokenId> tokens,
                                size_t step) {
  std::vector<float> logits(static_cast<size_t>(tiny.llama->config().vocab_size));
  for (size_t at = 0; at < tokens.size(); at += step)
    feed(*tiny.llama, cache, tokens.subspan(at, std::min(step, tokens.size() - at)), 1, logits.data());
  return logits;
}

std::unique_ptr<KvCachePolicy> simulated(const TinyEvaluation& tiny, const char* format) {
  const TensorRanges ranges{std::vector<float>(3, 4), std::vector<float>(3, 4)};
  return make_simulated_policy(tiny.model, {{"policy", "simulated"}, {"format", format}}, ranges);
}

TEST(SimulatedPolicy, FormatsOfFewerBitsChangeTheAnswerMore) {
  const TinyEvaluation tiny;
  const std::vector<TokenId> tokens = tiny.text(300);
  const auto full = tiny.model.make_policy("full")->new_sequence(1);
  const std::vector<float> exact = logits_after(tiny, *full, tokens, 300);
  std::map<std::string, double> changes;
  for (const std::string& format : simulated_formats()) {
    const auto policy = simulated(tiny, format.c_str());
    const std::vector<float> logits = logits_after(tiny, *policy->new_sequence(1), tokens, 300);
    // turboquant keeps two layers at either end, which are all layers of this model
    EXPECT_EQ(logits == exact, format.starts_with("turboquant")) << format;
    for (size_t i = 0; i < exact.size(); ++i) changes[format] += std::abs(static_cast<double>(exact[i]) - logits[i]);
  }
  EXPECT_GT(changes["q8_0"], 0);
  EXPECT_LT(changes["q8_0"], changes["fp8"]);
  EXPECT_LT(changes["fp8"], changes["nvfp4"]);
  EXPECT_LT(changes["fp8"], changes["kvarn_k4v2"]);
}

TEST(SimulatedPolicy, TheAnswerDoesNotDependOnThePasses) {
  const TinyEvaluation tiny;
  const std::vector<TokenId> tokens = tiny.text(300);
  for (const char* format : {"fp8", "kvarn_k4v2"}) {
    const auto policy = simulated(tiny, format);
    const auto whole = policy->new_sequence(1), pieces = policy->new_sequence(1);
    EXPECT_EQ(logits_after(tiny, *whole, tokens, 300), logits_after(tiny, *pieces, tokens, 7)) << format;
    const auto fork = whole->fork();
    const std::vector<TokenId> more = tiny.text(90);
    EXPECT_EQ(logits_after(tiny, *fork, more, 90), logits_after(tiny, *pieces, more, 1)) << format;
    EXPECT_EQ(whole->stats().tokens, 300) << format;
    EXPECT_EQ(fork->stats().bytes, pieces->stats().bytes) << format;
  }
}

TEST(SimulatedPolicy, CountsTheBytesOfTheFormatAndOfExactParts) {
  const TinyEvaluation tiny;
  const int64_t heads = tiny.shape.n_layers * tiny.shape.n_kv_heads, dense = tiny.shape.bytes_per_token();
  const auto bytes_after = [&](const char* format, int64_t n) {
    const auto cache = simulated(tiny, format)->new_sequence(1);
    feed(*tiny.llama, *cache, tiny.text(n), 0, nullptr);
    return cache->stats().bytes;
  };
  EXPECT_EQ(bytes_after("q8_0", 300), 300 * heads * 2 * 34);
  EXPECT_EQ(bytes_after("turboquant_3", 300), 300 * dense);
  // The first tile and the 44 tokens after the second one are exact.
  const int64_t tile = simulated_format("kvarn_k4v2", tiny.shape).tile_bytes;
  EXPECT_EQ(bytes_after("kvarn_k4v2", 300), (128 + 44) * dense + heads * tile);
  EXPECT_EQ(bytes_after("kvarn_k4v2", 100), 100 * dense);
}

TEST(SimulatedPolicy, RangesAreThoseOfTheLargestValues) {
  const TinyEvaluation tiny;
  const TensorRanges few = measure_ranges(tiny.model, tiny.text(20)), many = measure_ranges(tiny.model, tiny.text(200));
  ASSERT_EQ(few.k.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(few.k[i], 0);
    EXPECT_GE(many.k[i], few.k[i]);
    EXPECT_GE(many.v[i], few.v[i]);
  }
}

TEST(SimulatedPolicy, NamesWhatIsWrong) {
  const TinyEvaluation tiny;
  const auto error_of = [&](const nlohmann::json& spec) -> std::string {
    try {
      make_simulated_policy(tiny.model, spec, {});
      return "no error";
    } catch (const CacheError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of({{"policy", "simulated"}}), testing::HasSubstr("kv_cache.format: expected one of"));
  EXPECT_THAT(error_of({{"policy", "simulated"}, {"format", "fp8"}, {"window", 3}}), testing::HasSubstr("window"));
}

}  // namespace
}  // namespace smartkv
