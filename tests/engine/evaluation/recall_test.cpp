#include "engine/evaluation/recall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/evaluation/evaluation_fixture.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

std::vector<TokenId> sentences(int64_t n) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < n) text += "it rained again. ";
  return ByteTokenizer().encode(text.substr(0, static_cast<size_t>(n)), {});
}

TEST(RecallPrompt, HidesFourNumbersAtTheirDepths) {
  const ByteTokenizer tokenizer;
  const RecallOptions options;
  for (int64_t index = 0; index < 10; ++index) {
    const RecallPrompt prompt = make_recall_prompt(tokenizer, sentences(9000), options, 2000, index, 10);
    ASSERT_EQ(prompt.context.size(), 2000u);
    ASSERT_EQ(prompt.needles.size(), 4u);
    const std::string text = tokenizer.decode(prompt.context, true);
    for (const RecallPrompt::Needle& needle : prompt.needles) {
      ASSERT_EQ(needle.number.size(), 5u);
      const size_t at = text.find(needle.number);
      ASSERT_NE(at, std::string::npos);
      EXPECT_EQ(needle.question.find(needle.number), std::string::npos);
      const double depth = options.depths[static_cast<size_t>(needle.depth)];
      EXPECT_NEAR(static_cast<double>(at) / 2000, depth, 0.12);
    }
  }
}

TEST(RecallPrompt, IsTheSameEveryTimeAndAnotherForEachIndex) {
  const auto prompt = [](int64_t index) {
    return make_recall_prompt(ByteTokenizer(), sentences(9000), {}, 1000, index, 5).context;
  };
  EXPECT_EQ(prompt(1), prompt(1));
  EXPECT_NE(prompt(1), prompt(2));
}

TEST(RecallPrompt, EveryWordingTellsAndAsks) {
  for (const std::string& wording : recall_wordings()) {
    RecallOptions options;
    options.wording = wording;
    options.again = 100;
    const RecallPrompt prompt = make_recall_prompt(ByteTokenizer(), sentences(9000), options, 2000, 3, 10);
    EXPECT_EQ(prompt.context.size(), 2000u);
    EXPECT_EQ(prompt.after.size(), 100u);
    const std::string text = ByteTokenizer().decode(prompt.context, true);
    for (const RecallPrompt::Needle& needle : prompt.needles) {
      EXPECT_NE(text.find(needle.number), std::string::npos) << wording;
      EXPECT_EQ(needle.question.find(needle.number), std::string::npos) << wording;
      EXPECT_EQ(needle.question.find('@'), std::string::npos) << wording;
    }
  }
  RecallOptions options;
  options.wording = "riddle";
  try {
    make_recall_prompt(ByteTokenizer(), sentences(9000), options, 2000, 0, 1);
    ADD_FAILURE() << "expected an EvaluationError";
  } catch (const EvaluationError& error) {
    EXPECT_STREQ(error.what(), "recall: expected a wording of number, locker, dialogue, found \"riddle\"");
  }
}

TEST(RecallPrompt, RefusesLengthsThatDoNotFit) {
  EXPECT_THROW(make_recall_prompt(ByteTokenizer(), sentences(9000), {}, 100, 0, 1),
               EvaluationError);  // the hidden lines alone are longer
  EXPECT_THROW(make_recall_prompt(ByteTokenizer(), sentences(900), {}, 1000, 0, 1), EvaluationError);
}

TEST(Recall, AsksAgainAfterMoreText) {
  const TinyEvaluation tiny;
  RecallOptions options;
  options.lengths = {300};
  options.questions = 8;
  options.again = 70;
  const auto report = measure_recall(tiny.model, ByteTokenizer(), parse_policy_list(R"({"policy":"streaming","tokens":192})"),
                                     sentences(2000), options);
  for (const auto& row : report.rows) {
    EXPECT_EQ(row["again_percent"], 0.0);  // of a random model
    EXPECT_EQ(row["correct_error"], 0.0);
    EXPECT_TRUE(row["relative_error"].is_null());
  }
  options.again = 9000;
  EXPECT_THROW(measure_recall(tiny.model, ByteTokenizer(), parse_policy_list("full"), sentences(2000), options), EvaluationError);
}

TEST(Recall, AsksAtLeastAsOftenAsToldAndSumsUp) {
  const TinyEvaluation tiny;
  RecallOptions options;
  options.lengths = {300, 400};
  options.questions = 10;
  const auto report =
      measure_recall(tiny.model, ByteTokenizer(), parse_policy_list(R"({"policy":"streaming","tokens":192})"),
                     sentences(2000), options);
  ASSERT_EQ(report.rows.size(), 6u);  // two policies, two lengths and their sum
  EXPECT_EQ(report.rows[0]["questions"], 8);
  EXPECT_EQ(report.rows[2]["questions"], 16);
  EXPECT_EQ(report.rows[2]["length"], "all");
  EXPECT_FALSE(report.rows[1].contains("overall_percent"));
  EXPECT_TRUE(report.rows[2].contains("overall_percent"));
  EXPECT_LT(report.rows[5]["kept_percent"].get<double>(), 80.0);
}

TEST(Recall, FailsOnANan) {
  const TinyEvaluation tiny;
  RecallOptions options;
  options.lengths = {300};
  options.questions = 4;
  const std::vector<PolicySpec> specs = {{"full", "full"}, {"the broken one", "broken"}};
  EXPECT_THROW(measure_recall(tiny.model, ByteTokenizer(), specs, sentences(2000), options), EvaluationError);
}

}  // namespace
}  // namespace smartkv
