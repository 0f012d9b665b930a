// channel_packed's guard on SmolLM2 when a text turns from prose to code.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/policies/channel_packed/channel_store.h"
#include "cache/stores/staged_sequence.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/text/tokenizer.h"
#include "lab/evaluation/evaluation.h"

namespace smartkv {
namespace {

class ChannelBackoff : public testing::Test {
 protected:
  static constexpr const char* kModel = SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  static constexpr int64_t kChecks = 256;                 // tokens between checks
  static constexpr size_t kBefore = 1280, kAfter = 1024;  // tokens before the text turns, and after it

  std::vector<TokenId> read(const char* name) const {
    return read_tokens(std::string(SMARTKV_SOURCE "/") + name, *tokenizer_);
  }
  // Feeds the tokens. Returns the greatest KL divergence of any layer in any check, in nats.
  double run(SequenceCache* cache, std::span<const TokenId> tokens) {
    const auto& store = dynamic_cast<const ChannelStore&>(dynamic_cast<const StagedSequence&>(*cache).store(0));
    double most = 0;
    for (size_t at = 0; at < tokens.size(); at += kChecks) {
      feed(*model_, *cache, tokens.subspan(at, kChecks), 1, logits_.data());
      for (int64_t layer = 0; layer < shape_.n_layers; ++layer) most = std::max(most, store.fidelity(layer).kl);
    }
    return most;
  }
  static double backoffs(const SequenceCache& cache) { return cache.details().at("channel_backoffs"); }
  static double packed(const SequenceCache& cache) { return cache.details().at("packed_layers"); }

  std::unique_ptr<Weights> weights_ = Weights::open(kModel);
  ThreadPool threads_{2};
  ModelOptions options_{.weights = WeightFormat::kBf16};  // the limit was chosen with these weights
  std::unique_ptr<Model> model_ = load_llama(*weights_, options_, threads_);
  std::unique_ptr<Tokenizer> tokenizer_ = load_tokenizer(kModel);
  CacheShape shape_ = llama_cache_shape(weights_->config(), options_);
  PolicyContext context_ = policy_context(*model_, shape_, &threads_);
  std::vector<float> logits_ = std::vector<float>(static_cast<size_t>(model_->config().vocab_size));
};

// The limit was chosen on other texts. Their checks found at most 0.036 nats in prose, and 0.038 and 0.054 in code
// after it.
TEST_F(ChannelBackoff, ATurnFromProseToCodeMakesAPackedLayerFull) {
  const std::vector<TokenId> prose = read("assets/evaluation/prose.txt"), code = read("tests/fixtures/text/code.txt");
  ASSERT_GE(prose.size(), kBefore + kAfter);
  ASSERT_GE(code.size(), kAfter);
  const auto policy = make_policy(
      context_, {{"policy", "channel_packed"}, {"storage", "quantized"}, {"check_every", kChecks}, {"most_kl", 0.037}});
  const auto goes_on = policy->new_sequence(1);
  run(goes_on.get(), std::span(prose).first(kBefore));
  EXPECT_GT(packed(*goes_on), 0.9);
  ASSERT_EQ(backoffs(*goes_on), 0);
  const auto turns = goes_on->fork();
  const double prose_kl = run(goes_on.get(), std::span(prose).subspan(kBefore, kAfter));
  const double code_kl = run(turns.get(), std::span(code).first(kAfter));
  RecordProperty("prose_kl", std::to_string(prose_kl));
  RecordProperty("code_kl", std::to_string(code_kl));
  RecordProperty("code_backoffs", std::to_string(backoffs(*turns)));
  EXPECT_EQ(backoffs(*goes_on), 0) << prose_kl;
  EXPECT_EQ(packed(*goes_on), 1);
  EXPECT_GT(backoffs(*turns), 0) << code_kl;
  EXPECT_LT(packed(*turns), 1);
}

}  // namespace
}  // namespace smartkv
