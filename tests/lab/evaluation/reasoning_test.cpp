#include "lab/evaluation/reasoning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/lab/evaluation/evaluation_fixture.h"
#include "tests/text/byte_tokenizer.h"

namespace smartkv {
namespace {

std::string right_answer(const ReasoningProblem& problem) {
  std::string answer;
  for (const std::string& step : problem.steps) answer += step + "\n";
  return answer + problem.result;
}

TEST(Reasoning, ProblemsAreTheSameEveryTimeAndDiffer) {
  const ReasoningOptions options{.problems = 2, .answer_tokens = 1000};
  const auto make = [&](int64_t index) { return make_reasoning_problem(ByteTokenizer(), options, index); };
  EXPECT_EQ(make(1).prompt, make(1).prompt);
  EXPECT_EQ(make(1).steps, make(1).steps);
  EXPECT_NE(make(1).prompt, make(2).prompt);
  EXPECT_GE(right_answer(make(1)).size(), 1000u);
  EXPECT_THROW(make_reasoning_problem(ByteTokenizer(), {.answer_tokens = 100000}, 0), EvaluationError);
}

// Each step begins where the one before ended, its line is in the table, and the sums are right.
TEST(Reasoning, StepsFollowTheTable) {
  const ReasoningProblem problem = make_reasoning_problem(ByteTokenizer(), {.answer_tokens = 1000}, 5);
  int64_t sum = 0;
  std::string place;
  for (const std::string& step : problem.steps) {
    const size_t from = step.find("From "), colon = step.find(": ", from), end = step.find(" Sum: ");
    EXPECT_NE(problem.prompt.find(step.substr(from, end - from) + "\n"), std::string::npos) << step;
    EXPECT_TRUE(place.empty() || step.substr(from + 5).starts_with(place + " ")) << step;
    const int64_t before = sum;
    sum += std::stoll(step.substr(colon + 2));
    EXPECT_THAT(step, testing::EndsWith("Sum: " + std::to_string(before) + " + " + std::to_string(sum - before) +
                                        " = " + std::to_string(sum)));
    const size_t to = step.find(" goes to ") + 9;
    place = step.substr(to, colon - to);
  }
  EXPECT_THAT(problem.question, testing::HasSubstr("back in " + place));
  EXPECT_EQ(problem.result, "Back in " + place + ". Total: " + std::to_string(sum) + " hours.");
}

TEST(Reasoning, AMistakeEndsTheRightSteps) {
  const ReasoningProblem problem = make_reasoning_problem(ByteTokenizer(), {.answer_tokens = 600}, 3);
  const auto n = static_cast<int64_t>(problem.steps.size());
  ASSERT_GE(n, 5);
  std::string answer = right_answer(problem);
  EXPECT_EQ(problem.right_steps(answer), n);
  EXPECT_TRUE(problem.right_result(answer));
  answer.insert(answer.find(problem.steps[2]) + problem.steps[2].size(), "0");
  EXPECT_EQ(problem.right_steps(answer), 2);
  EXPECT_TRUE(problem.right_result(answer));  // found its way back
  answer.pop_back();
  EXPECT_FALSE(problem.right_result(answer));
  EXPECT_EQ(problem.right_steps(""), 0);
}

TEST(Reasoning, ComparesWithTheReference) {
  ModelConfig config = tiny_config();
  config.context_length = 4096;
  const TinyEvaluation tiny{TinyWeights(config)};
  const std::vector<PolicySpec> specs = {{"full", "full"}, {"again", "full"}, {"k2v2", "k2v2"}};
  const EvaluationReport report =
      measure_reasoning(tiny.model, ByteTokenizer(), specs, {.problems = 2, .answer_tokens = 300});
  ASSERT_EQ(report.rows.size(), 3u);
  EXPECT_EQ(report.rows[1]["same_percent"], 100);
  EXPECT_EQ(report.rows[1]["common_tokens"], report.rows[1]["answer_tokens"]);
  EXPECT_LT(report.rows[2]["ratio"], 0.5);
  EXPECT_LE(report.rows[2]["common_tokens"], report.rows[0]["common_tokens"]);
  EXPECT_EQ(report.rows[2]["exact_percent"], 0);  // the weights are random
  const TinyEvaluation shorter;
  EXPECT_THROW(measure_reasoning(shorter.model, ByteTokenizer(), specs, {.problems = 1}), EvaluationError);
}

}  // namespace
}  // namespace smartkv
