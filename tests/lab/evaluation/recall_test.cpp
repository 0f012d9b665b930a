#include "lab/evaluation/recall.h"

#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/lab/evaluation/evaluation_fixture.h"
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
    ASSERT_EQ(prompt.questions.size(), 4u);
    const std::string text = tokenizer.decode(prompt.context, true);
    for (const RecallPrompt::Question& needle : prompt.questions) {
      ASSERT_EQ(needle.answers[0].size(), 5u);
      const size_t at = text.find(needle.answers[0]);
      ASSERT_NE(at, std::string::npos);
      EXPECT_EQ(needle.text.find(needle.answers[0]), std::string::npos);
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
    for (const RecallPrompt::Question& needle : prompt.questions) {
      EXPECT_NE(text.find(needle.answers[0]), std::string::npos) << wording;
      EXPECT_EQ(needle.text.find(needle.answers[0]), std::string::npos) << wording;
      EXPECT_EQ(needle.text.find('@'), std::string::npos) << wording;
    }
  }
  RecallOptions options;
  options.wording = "riddle";
  try {
    make_recall_prompt(ByteTokenizer(), sentences(9000), options, 2000, 0, 1);
    ADD_FAILURE() << "expected an EvaluationError";
  } catch (const EvaluationError& error) {
    EXPECT_STREQ(error.what(), "recall: expected one of the wordings number, locker, dialogue, found \"riddle\"");
  }
}

TEST(RecallPrompt, OneQuestionAsksForSeveralFacts) {
  for (const std::string& wording : recall_wordings()) {
    RecallOptions options;
    options.wording = wording;
    const RecallPrompt one = make_recall_prompt(ByteTokenizer(), sentences(9000), options, 2000, 3, 10);
    options.facts_asked = 3;
    const RecallPrompt several = make_recall_prompt(ByteTokenizer(), sentences(9000), options, 2000, 3, 10);
    EXPECT_EQ(several.context, one.context);  // the same texts, so that tables are comparable
    ASSERT_EQ(several.questions.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      const RecallPrompt::Question& question = several.questions[i];
      EXPECT_EQ(question.depth, -1);
      EXPECT_EQ(question.answer_tokens, 3 * one.questions[i].answer_tokens);
      ASSERT_EQ(question.answers.size(), 3u);
      for (size_t j = 0; j < 3; ++j) {
        EXPECT_EQ(question.answers[j], one.questions[(i + j) % 4].answers[0]);
        EXPECT_EQ(question.text.find(question.answers[j]), std::string::npos);
      }
      EXPECT_EQ(question.text.find('@'), std::string::npos);
    }
  }
  EXPECT_NE(make_recall_prompt(ByteTokenizer(), sentences(9000), {.facts_asked = 3}, 2000, 0, 1)
                .questions[0]
                .text.find("Secret numbers of Alice, Brian and Carol:"),
            std::string::npos);
  for (const int64_t asked : {0, 5}) {
    EXPECT_THROW(make_recall_prompt(ByteTokenizer(), sentences(9000), {.facts_asked = asked}, 2000, 0, 1),
                 EvaluationError);
  }
}

TEST(RecallPrompt, VariablesStandInChains) {
  RecallOptions options;
  options.task = "variables";
  for (int64_t index = 0; index < 10; ++index) {
    const RecallPrompt prompt = make_recall_prompt(ByteTokenizer(), sentences(9000), options, 4000, index, 10);
    ASSERT_EQ(prompt.context.size(), 4000u);
    ASSERT_EQ(prompt.questions.size(), 2u);
    const std::string text = ByteTokenizer().decode(prompt.context, true);
    for (const RecallPrompt::Question& question : prompt.questions) {
      EXPECT_EQ(question.depth, -1);
      ASSERT_EQ(question.answers.size(), 2u);
      const size_t first = text.find("VAR " + question.answers[0] + " = "),
                   second = text.find("VAR " + question.answers[1] + " = VAR " + question.answers[0]);
      ASSERT_NE(first, std::string::npos);
      ASSERT_NE(second, std::string::npos);
      EXPECT_LT(first, second);
      EXPECT_NE(question.text.find(text.substr(first + 12, 5)), std::string::npos);  // asks for the value
      for (const std::string& name : question.answers) EXPECT_EQ(question.text.find(name), std::string::npos);
    }
  }
}

TEST(RecallPrompt, TheWordsAskedForAreTheMostCommon) {
  RecallOptions options;
  options.task = "words";
  const RecallPrompt prompt = make_recall_prompt(ByteTokenizer(), sentences(20000), options, 8000, 0, 1);
  ASSERT_EQ(prompt.questions.size(), 1u);
  const std::string all = ByteTokenizer().decode(prompt.context, true);
  const std::string text = all.substr(all.rfind("Some words stand more often"));  // past the example
  std::map<std::string, int> counts;
  for (size_t at = text.find("\n\nWords:"); at != std::string::npos; at = text.find("\n\nWords:", at + 1)) {
    std::stringstream list(text.substr(at + 8, text.find('.', at) - at - 8));
    for (std::string word; std::getline(list, word, ',');) ++counts[word.substr(1)];
  }
  int least = 1000, others = 0;
  for (const auto& [word, count] : counts) {
    const bool asked = testing::Value(prompt.questions[0].answers, testing::Contains(word));
    if (asked) least = std::min(least, count);
    if (!asked) others = std::max(others, count);
  }
  EXPECT_EQ(prompt.questions[0].answers.size(), 3u);
  EXPECT_GT(least, 2 * others);
}

TEST(Recall, CountsSharesOfAnswers) {
  const TinyEvaluation tiny;
  for (const std::string& task : recall_tasks()) {
    RecallOptions options;
    options.task = task;
    options.lengths = {1200};
    options.questions = 3;
    if (task != "facts") {
      EXPECT_THROW(measure_recall(tiny.model, ByteTokenizer(), parse_policy_list("full"), sentences(2000), options),
                   EvaluationError);  // a context of 512
    }
    options.task = "riddles";
    EXPECT_THROW(make_recall_prompt(ByteTokenizer(), sentences(2000), options, 1200, 0, 1), EvaluationError);
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
  options.lengths = {240};
  options.questions = 8;
  options.again = 70;
  const auto report =
      measure_recall(tiny.model, ByteTokenizer(), parse_policy_list(R"({"policy":"streaming","tokens":192})"),
                     sentences(2000), options);
  for (const auto& row : report.rows) {
    EXPECT_EQ(row["again_percent"], 0.0);  // a random model finds nothing
    EXPECT_EQ(row["correct_error"], 0.0);
    EXPECT_TRUE(row["relative_error"].is_null());
  }
  options.again = 9000;
  EXPECT_THROW(measure_recall(tiny.model, ByteTokenizer(), parse_policy_list("full"), sentences(2000), options),
               EvaluationError);
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

TEST(Recall, SeveralFactsAreOneQuestionOfNoDepth) {
  const TinyEvaluation tiny;
  RecallOptions options;
  options.lengths = {300};
  options.questions = 8;
  options.facts_asked = 2;
  const auto report = measure_recall(tiny.model, ByteTokenizer(), parse_policy_list("full"), sentences(2000), options);
  EXPECT_EQ(report.conditions["facts_asked"], 2);
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(report.rows[0]["questions"], 8);
  EXPECT_TRUE(report.rows[0]["depth_0.5"].is_null());
  for (const ReportColumn& column : report.columns) EXPECT_NE(column.key, "depth_0.5");
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
