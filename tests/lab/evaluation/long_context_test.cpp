#include "lab/evaluation/long_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/sampling/logit_metrics.h"
#include "tests/lab/evaluation/evaluation_fixture.h"

namespace smartkv {
namespace {

const nlohmann::json kStreamingSpec = {{"policy", "streaming"}, {"tokens", 192}};

LongContextOptions options_of(std::vector<nlohmann::json> policies) {
  LongContextOptions options;
  options.tokens = 500;
  options.marks = {400, 300, 1000};
  options.policies = std::move(policies);
  options.scored_tokens = 150;
  options.decode_tokens = 80;
  return options;
}

LongContextReport measure(const TinyEvaluation& tiny, const LongContextOptions& options,
                          const OnLongContextRow& on_row = nullptr) {
  LongContextReport report;
  measure_long_context(tiny.model, tiny.text(options.tokens + 1), options, &report, on_row);
  return report;
}

// Returns the losses of tokens [scored, end) in a sequence with a prompt of `prompt` tokens.
std::vector<double> losses_of_a_request(const TinyEvaluation& tiny, const nlohmann::json& spec, int64_t prompt,
                                        int64_t scored, int64_t end) {
  const std::vector<TokenId> text = tiny.text(501);
  const auto policy = make_policy(tiny.context, spec);
  const auto cache = policy->new_sequence(prompt);
  std::vector<float> logits(static_cast<size_t>(tiny.weights.config().vocab_size));
  std::vector<double> losses;
  feed(tiny.model.model, *cache, std::span(text).first(static_cast<size_t>(scored)), 0, nullptr);
  for (int64_t t = scored; t < end; ++t) {
    feed(tiny.model.model, *cache, std::span(text).subspan(static_cast<size_t>(t), 1), 1, logits.data());
    log_softmax(logits);
    losses.push_back(-static_cast<double>(logits[static_cast<size_t>(text[static_cast<size_t>(t) + 1])]));
  }
  return losses;
}

TEST(LongContext, MeasuresAtRisingMarksAndTheEndAndTellsAtOnce) {
  const TinyEvaluation tiny;
  std::vector<std::string> parts;
  const auto tell = [&](const LongContextReport& so_far) { parts.push_back(so_far.to_table(so_far.rows.size() - 1)); };
  const LongContextReport report = measure(tiny, options_of({"full", kStreamingSpec}), tell);
  ASSERT_EQ(report.rows.size(), 6u);
  std::string together;
  for (const std::string& part : parts) together += part;
  EXPECT_EQ(together, report.to_table());
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const LongContextRow& row = report.rows[i];
    EXPECT_EQ(row.tokens, (std::vector<int64_t>{300, 400, 500})[i % 3]);
    EXPECT_EQ(row.full_bytes, report.rows[i % 3].full_bytes);
    EXPECT_LE(row.tiers.exact, row.kv_bytes);
    EXPECT_GE(row.worst_ms, row.median_ms);
    EXPECT_GT(row.decode, 0);
    EXPECT_EQ(row.losses.size(), 150u);
    EXPECT_EQ(std::isnan(row.change), i < 3);
  }
  EXPECT_EQ(report.rows[2].tiers.exact, 500 * tiny.shape.bytes_per_token());
  EXPECT_LT(report.rows[5].kv_bytes, report.rows[2].kv_bytes / 2);
}

TEST(LongContext, ARowIsWhatARequestOfThatLengthSees) {
  const TinyEvaluation tiny;
  for (const nlohmann::json& spec : {kStreamingSpec, nlohmann::json{{"policy", "snapkv"}, {"tokens", 192}},
                                     nlohmann::json{{"policy", "block_summary"}, {"tokens", 320}, {"window", 64}}}) {
    const LongContextReport report = measure(tiny, options_of({spec}));
    for (const LongContextRow& row : report.rows) {
      EXPECT_EQ(row.losses, losses_of_a_request(tiny, spec, row.tokens - 80, row.tokens - 150, row.tokens))
          << spec << row.tokens;
    }
  }
}

TEST(LongContext, ComparesWithTheFullCacheTokenByToken) {
  const TinyEvaluation tiny;
  const nlohmann::json everything = {{"policy", "streaming"}, {"tokens", 4096}};
  const LongContextReport report = measure(tiny, options_of({"full", everything, kStreamingSpec}));
  EXPECT_EQ(report.rows[5].change, 0);  // keeps everything
  EXPECT_EQ(report.rows[5].change_error, 0);
  const LongContextRow &full = report.rows[2], &short_one = report.rows[8];
  EXPECT_NEAR(short_one.change, 100 * (short_one.perplexity / full.perplexity - 1), 1e-6);
  EXPECT_GT(short_one.change_error, 0);
}

TEST(LongContext, TellsWhatItsBytesAreSpentOn) {
  const TinyEvaluation tiny;
  const nlohmann::json spec = {{"policy", "block_summary"}, {"tokens", 320}, {"window", 64}};
  const LongContextReport report = measure(tiny, options_of({spec}));
  const LongContextRow& row = report.rows[2];
  EXPECT_GT(row.tiers.summaries, 0);
  EXPECT_EQ(row.tiers.packed, 0);
  EXPECT_EQ(row.tiers.exact + row.tiers.summaries,
            static_cast<int64_t>(row.tokens_kept) * tiny.shape.bytes_per_token());
}

TEST(LongContext, RefusesMarksThatAreNoLengths) {
  const TinyEvaluation tiny;
  LongContextOptions options = options_of({"full"});
  options.marks = {100};
  LongContextReport report;
  EXPECT_THROW(measure_long_context(tiny.model, tiny.text(501), options, &report), EvaluationError);
}

}  // namespace
}  // namespace smartkv
