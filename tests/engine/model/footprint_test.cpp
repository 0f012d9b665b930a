// Compares the planned memory of a model with that of the loaded one.
#include "engine/model/llama_footprint.h"

#include <gtest/gtest.h>

#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

void expect_loaded(const ModelConfig& config, const ModelOptions& options) {
  const TinyWeights weights(config);
  ThreadPool pool(1);
  EXPECT_EQ(llama_weight_bytes(weights, options), load_llama(weights, options, pool)->weight_bytes())
      << name(options.weights);
}

TEST(LlamaFootprint, IsThatOfTheLoadedModel) {
  for (const WeightFormat weights :
       {WeightFormat::kBf16, WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kF32}) {
    expect_loaded(tiny_config(), {.weights = weights});
    expect_loaded(tiny_experts(), {.weights = weights});
  }
}

TEST(LlamaFootprint, CountsWhatRelativesAdd) {
  ModelConfig config = tiny_config();
  config.tie_word_embeddings = false;
  config.attention_bias = config.mlp_bias = true;
  for (const QkNorm norm : {QkNorm::kHead, QkNorm::kProjection}) {
    config.qk_norm = norm;
    expect_loaded(config, {.dtype = DataType::kBf16});
  }
}

TEST(LlamaFootprint, CountsSinksAndBiasesOfExperts) {
  ModelConfig config = tiny_experts();
  config.attention_sinks = config.attention_bias = config.mlp_bias = config.router_bias = true;
  expect_loaded(config, {.dtype = DataType::kBf16});
}

TEST(LlamaFootprint, APassOfExpertsHoldsTheirOutputs) {
  ModelConfig dense = tiny_experts();
  dense.n_experts = dense.experts_per_token = dense.expert_size = dense.shared_expert_size = 0;
  const auto more = [&](Backend backend) {
    return llama_pass_bytes(tiny_experts(), {.backend = backend}, 1) - llama_pass_bytes(dense, {.backend = backend}, 1);
  };
  // Of three MLPs the outputs, of five experts the logits, and 2 * 32 + 64 - 96 more columns of gates.
  EXPECT_EQ(more(Backend::kNative), (3 * 64 + 5) * 4 + 32 * 2);
  EXPECT_EQ(more(Backend::kTorch), 5 * 4);
}

TEST(LlamaFootprint, APassGrowsWithItsTokens) {
  const ModelConfig config = tiny_config();
  EXPECT_EQ(llama_pass_bytes(config, {}, 0), 0);
  EXPECT_EQ(llama_pass_bytes(config, {}, 64), 64 * llama_pass_bytes(config, {}, 1));
  EXPECT_GT(llama_pass_bytes(config, {.dtype = DataType::kF32, .weights = WeightFormat::kF32}, 1),
            llama_pass_bytes(config, {}, 1));
}

}  // namespace
}  // namespace smartkv
