// The requests of `smartkv bench --serving`.
#include "lab/serving/serving_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/server/fake_engine.h"

namespace smartkv::test {
namespace {

// Returns words that differ, so that a passage shows where it was cut.
std::string numbered_words(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text.append("w").append(std::to_string(i)).append(i % 7 == 0 ? "\n" : " ");
  return text;
}

class ServingPlan : public ::testing::Test {
 protected:
  ByteTokenizer tokenizer_;
  PromptSource prompts_{numbered_words(2000), tokenizer_};
};

TEST_F(ServingPlan, ChoosesCasesByName) {
  const std::vector<ServingCase> cases = parse_serving_cases("g,a");
  ASSERT_EQ(cases.size(), 2u);
  EXPECT_TRUE(cases[0].fairness());
  EXPECT_EQ(cases[1].requests, 64);
  EXPECT_EQ(cases[1].context(), 1200);
  EXPECT_THROW(parse_serving_cases("a,h"), std::invalid_argument);
  EXPECT_THROW(parse_serving_cases(""), std::invalid_argument);
}

TEST_F(ServingPlan, PromptsHaveExactLengthsAndDiffer) {
  const ServingCase one{.name = "x", .what = "", .requests = 40, .prompt_tokens = 100, .output_tokens = 7};
  std::set<std::vector<TokenId>> seen;
  for (int repetition = 0; repetition < 3; ++repetition) {
    for (const ServingRequest& request : prompts_.requests(one, repetition)) {
      EXPECT_EQ(request.prompt.size(), 100u);
      EXPECT_EQ(request.output_tokens, 7);
      EXPECT_TRUE(seen.insert(request.prompt).second);
    }
  }
}

TEST_F(ServingPlan, TheSameEveryTime) {
  const ServingCase one{.name = "x", .what = "", .requests = 5, .prompt_tokens = 30, .output_tokens = 1};
  const PromptSource again(numbered_words(2000), tokenizer_);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(prompts_.requests(one, 1)[i].prompt, again.requests(one, 1)[i].prompt);
}

TEST_F(ServingPlan, QuestionsShareTheirTexts) {
  const ServingCase one{.name = "x",
                        .what = "",
                        .requests = 8,
                        .prompt_tokens = 120,
                        .output_tokens = 1,
                        .shared_texts = 4,
                        .shared_tokens = 100};
  const std::vector<ServingRequest> requests = prompts_.requests(one, 0);
  std::set<std::vector<TokenId>> texts, questions;
  for (const ServingRequest& request : requests) {
    ASSERT_EQ(request.prompt.size(), 120u);
    texts.emplace(request.prompt.begin(), request.prompt.begin() + 100);
    questions.emplace(request.prompt.begin() + 100, request.prompt.end());
  }
  EXPECT_EQ(texts.size(), 4u);
  EXPECT_EQ(questions.size(), 8u);
  EXPECT_TRUE(std::equal(requests[1].prompt.begin(), requests[1].prompt.begin() + 100, requests[5].prompt.begin()));
}

TEST_F(ServingPlan, CutsWholeWords) {
  const ServingCase one{.name = "x", .what = "", .requests = 2, .prompt_words = 3, .output_tokens = 1};
  EXPECT_GE(prompts_.longest(one, 5), 8);  // "w1 w2 w3" and one token
  for (const ServingRequest& request : prompts_.requests(one, 0)) {
    EXPECT_THAT(tokenizer_.decode(request.prompt), ::testing::MatchesRegex("w[0-9]+[ \n]w[0-9]+[ \n]w[0-9]+"));
  }
}

TEST_F(ServingPlan, LongPromptsAheadDifferFromTheRequests) {
  const ServingCase one{
      .name = "x", .what = "", .requests = 2, .prompt_tokens = 5, .output_tokens = 1, .ahead_tokens = 500};
  const std::vector<ServingRequest> ahead = prompts_.ahead(one, 0);
  ASSERT_EQ(ahead.size(), 2u);
  EXPECT_EQ(ahead[0].prompt.size(), 500u);
  EXPECT_NE(ahead[0].prompt, ahead[1].prompt);
  EXPECT_EQ(prompts_.longest(one, 1), 501);
}

TEST_F(ServingPlan, SaysThatTheTextIsTooShort) {
  const ServingCase one{.name = "x", .what = "", .requests = 2, .prompt_tokens = 20000, .output_tokens = 1};
  try {
    prompts_.requests(one, 0);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("too short: expected 20003 tokens"));
  }
}

}  // namespace
}  // namespace smartkv::test
