#include "engine/sample.h"

#include <gtest/gtest.h>

#include "tests/engine/fake_model.h"

namespace smartkv {
namespace {

// A constraint that allows tokens 1 to 5 in its mask, but refuses the tokens up to `refused`.
class LooseConstraint final : public Constraint {
 public:
  explicit LooseConstraint(TokenId refused) : refused_(refused) {}
  std::span<const uint32_t> allowed() override { return mask_; }
  bool accept(TokenId token) override { return token > refused_; }
  void rollback(int64_t) override {}
  bool ended() const override { return false; }

 private:
  TokenId refused_;
  std::vector<uint32_t> mask_ = {0b111110, 0};
};

class LooseGrammar final : public CompiledGrammar {
 public:
  explicit LooseGrammar(TokenId refused) : refused_(refused) {}
  std::unique_ptr<Constraint> start() const override { return std::make_unique<LooseConstraint>(refused_); }
  int64_t bytes() const override { return 0; }

 private:
  TokenId refused_;
};

// Logits fall from token 1 on, so that refused tokens are drawn first.
class Sample : public testing::Test {
 protected:
  Sample() {
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = -static_cast<float>(i);
  }
  std::unique_ptr<Request> make(TokenId refused, const GenerationRequest& like = {}) const {
    GenerationRequest generation = like;
    generation.prompt = {1, 2, 3};
    generation.max_tokens = 5;
    generation.sampling.temperature = 0;
    return std::make_unique<Request>(generation,
                                     RequestObjects{nullptr, nullptr, std::make_shared<LooseGrammar>(refused)},
                                     std::set<TokenId>{kFakeEos}, tokenizer, 100, 1);
  }

  FakeTokenizer tokenizer;
  std::vector<float> logits = std::vector<float>(kFakeVocab);
  SamplingScratch scratch;
};

TEST_F(Sample, TokensThatTheGrammarRefusesLeaveTheMask) {
  const auto request = make(3);
  const GenerationEvent event =
      sample_round(*request, &request->choices[0], logits.data(), kFakeVocab, kFakeVocab, nullptr, &scratch);
  EXPECT_EQ(event.tokens, std::vector<TokenId>{4});
  EXPECT_EQ(event.text, "d");
}

TEST_F(Sample, TextEndsBeforeMinTokensWhereNothingElseIsLeft) {
  GenerationRequest generation;
  generation.min_tokens = 3;
  generation.stop_token_ids = {5};
  const auto constrained = make(4, generation);  // refuses all allowed tokens except a stop token
  const auto event =
      sample_round(*constrained, &constrained->choices[0], logits.data(), kFakeVocab, kFakeVocab, nullptr, &scratch);
  EXPECT_EQ(event.tokens, std::vector<TokenId>{5});
  EXPECT_EQ(event.finish, FinishReason::kStop);

  for (TokenId token = 0; token < kFakeVocab; ++token) generation.stop_token_ids.push_back(token);
  generation.prompt = {1};
  generation.sampling.temperature = 0;
  Request every(generation, {}, std::set<TokenId>{kFakeEos}, tokenizer, 100, 1);
  EXPECT_EQ(sample_round(every, &every.choices[0], logits.data(), kFakeVocab, kFakeVocab, nullptr, &scratch).finish,
            FinishReason::kStop);
}

TEST_F(Sample, AMaskOfRefusedTokensIsAnError) {
  const auto request = make(5);
  EXPECT_THROW(sample_round(*request, &request->choices[0], logits.data(), kFakeVocab, kFakeVocab, nullptr, &scratch),
               SamplingError);
}

TEST_F(Sample, ARowIsComputedAgainWhereADeviceDrewARefusedToken) {
  const auto request = make(3);
  Sequence& choice = request->choices[0];
  choice.n_output = 1;
  std::optional<kernels::DeviceSample> draw = draw_on_device(*request, &choice, 1, kFakeVocab);
  ASSERT_TRUE(draw);
  draw->drawn.token = 1;
  EXPECT_TRUE(sample_round(*request, &choice, nullptr, kFakeVocab, kFakeVocab, &*draw, &scratch).tokens.empty());
  EXPECT_EQ(choice.n_output, 1);
  EXPECT_FALSE(draw_on_device(*request, &choice, 1, kFakeVocab));
  EXPECT_EQ(sample_round(*request, &choice, logits.data(), kFakeVocab, kFakeVocab, nullptr, &scratch).tokens,
            std::vector<TokenId>{4});
}

}  // namespace
}  // namespace smartkv
