// Answers that think, through the engine.
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

class ThinkingOutput : public EngineTest {
 protected:
  // The marks are "q" and "z"; token 27 is a blank.
  static GenerationRequest thoughtful(uint64_t seed, int64_t budget) {
    GenerationRequest request = make_request(20, 120, seed);
    request.grammar = "root ::= (\"a\" [b-d] \" \"){3} \"x\"";
    request.thinking =
        Thinking{.open = "q", .close = "z", .opened = true, .opening = {}, .closing = {26, 26}, .between = {27}};
    request.thinking->budget = budget;
    request.sampling.logit_bias = {{26, -100.0f}};  // the model does not end its thinking
    return request;
  }
};

TEST_F(ThinkingOutput, ABudgetHoldsUnderEveryDraft) {
  model->memory = 2;
  draft_model = std::make_unique<FakeModel>();
  draft_model->memory = 2;
  int4_model = std::make_unique<FakeModel>();
  start();
  const nlohmann::json methods[] = {
      {{"method", "ngram"}, {"ngram_min", 1}, {"tokens", 16}, {"adaptive", false}},
      {{"method", "draft_model"}, {"tokens", 5}, {"adaptive", false}},
      {{"method", "self"}, {"tokens", 5}, {"adaptive", false}},
  };
  for (uint64_t seed = 0; seed < 6; ++seed) {
    GenerationRequest request = thoughtful(seed, 10 + static_cast<int64_t>(seed));
    const auto stream = engine->submit(request);
    const ChoiceResult plain = read_all(*stream)[0];
    ASSERT_EQ(plain.finish, FinishReason::kStop) << plain.error;
    EXPECT_EQ(stream->usage().reasoning_tokens, 10 + static_cast<int64_t>(seed));
    const size_t close = plain.text.find("zz ");
    ASSERT_NE(close, std::string::npos) << plain.text;
    EXPECT_EQ(plain.text.size(), close + 3 + 10) << plain.text;
    for (const nlohmann::json& method : methods) {
      request.speculative = method;
      EXPECT_EQ(generate(request).tokens, plain.tokens) << method;
    }
  }
}

TEST_F(ThinkingOutput, StopStringsCountInTheAnswerOnly) {
  start();
  GenerationRequest request = thoughtful(1, 30);
  request.sampling.logit_bias.push_back({1, 20.0f});  // the thinking is full of "a"
  request.stop = {"a"};
  const ChoiceResult result = generate(request);
  EXPECT_EQ(result.stop_string, "a");
  EXPECT_NE(result.text.find("aa"), std::string::npos) << result.text;
  EXPECT_TRUE(result.text.ends_with("zz ")) << result.text;
}

}  // namespace
}  // namespace smartkv
