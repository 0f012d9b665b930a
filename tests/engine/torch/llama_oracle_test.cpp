// Compares the served model, on both backends, with the plain LibTorch model.
#include <gtest/gtest.h>

#include <vector>

#include "engine/torch/torch_llama.h"
#include "tests/engine/torch/torch_served.h"

namespace smartkv {
namespace {

double oracle_error(const std::vector<float>& found, const torch::Tensor& expected) {
  const torch::Tensor actual =
      torch::from_blob(const_cast<float*>(found.data()), expected.sizes().vec()).to(torch::kFloat64);
  return ((actual - expected).norm() / expected.norm()).item<double>();
}

ModelConfig variant(const std::string& name) {
  ModelConfig config = tiny_config();
  if (name == "head128") config.head_dim = 128;
  if (name == "mha") config.n_kv_heads = config.n_heads;
  if (name == "untied") config.tie_word_embeddings = false;
  if (name == "biases") config.attention_bias = config.mlp_bias = true;
  if (name == "qwen3") config.qk_norm = QkNorm::kHead;
  if (name == "olmo2") config.qk_norm = QkNorm::kProjection, config.norm_placement = NormPlacement::kOutput;
  if (name == "gemma2" || name == "gemma3") {
    config.norm_placement = NormPlacement::kBoth;
    config.activation = Activation::kGelu;
    config.sliding_window = 40;
    config.window_layers = {true, false, true};
    if (name == "gemma2") config.attention_soft_cap = 2.0, config.logit_soft_cap = 4.0;
    if (name == "gemma3") config.qk_norm = QkNorm::kHead, config.window_rope_theta = 300.0;
  }
  if (name == "experts") config = tiny_experts();
  if (name == "normalized_experts") {
    config = tiny_experts();
    config.normalized_experts = true;
    config.shared_expert_size = 0;
    config.expert_layers.clear();
    config.norm_placement = NormPlacement::kBoth;
    config.residual_multiplier = 0.22;
  }
  if (name == "smollm3") config.rope_layers = {true, false, true};
  if (name == "partial") config.rope.rotary_dim = 24;
  if (name == "granite") {
    config.embedding_multiplier = 12.0;
    config.attention_multiplier = 0.1;
    config.residual_multiplier = 0.22;
    config.logits_divisor = 8.0;
  }
  if (name == "llama3" || name == "yarn" || name == "linear" || name == "dynamic") {
    config.rope.factor = 8.0;
    config.rope.original_context = 32;
    config.rope.scaling = name == "llama3"   ? RopeScaling::kLlama3
                          : name == "yarn"   ? RopeScaling::kYarn
                          : name == "linear" ? RopeScaling::kLinear
                                             : RopeScaling::kDynamic;
  }
  return config;
}

class LlamaVariants : public testing::TestWithParam<const char*> {};

TEST_P(LlamaVariants, F32EqualsTheOracle) {
  const TinyWeights weights(variant(GetParam()));
  const std::vector<TokenId> tokens = some_tokens(150, weights.config().vocab_size, 5);
  const torch::Tensor input = torch::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())).unsqueeze(0);
  const torch::Tensor expected = TorchLlama(weights, torch::kFloat64).forward(input)[0];
  Served native(weights, "f32"), torch_backend(weights, "f32", "auto", torch_loader());
  EXPECT_LT(oracle_error(native.run(tokens, 512), expected), 1e-5);
  EXPECT_LT(oracle_error(torch_backend.run(tokens, 512), expected), 1e-5);
}

// Random weights amplify rounding errors. LibTorch's own bf16 shows by how much.
TEST_P(LlamaVariants, Bf16IsNearerThanLibTorchInBf16) {
  const TinyWeights weights(variant(GetParam()));
  const std::vector<TokenId> tokens = some_tokens(150, weights.config().vocab_size, 6);
  const torch::Tensor input = torch::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())).unsqueeze(0);
  const torch::Tensor expected = TorchLlama(weights, torch::kFloat64).forward(input)[0];
  Served native(weights, "bf16"), torch_backend(weights, "bf16", "auto", torch_loader());
  const torch::Tensor rounded = TorchLlama(weights, torch::kBFloat16).forward(input)[0].to(torch::kFloat64);
  // Rounding also changes the choice between experts that are nearly equal, in each model for other tokens.
  const double slack = weights.config().n_experts > 0 ? 1.5 : 1.0;
  const double theirs = slack * ((rounded - expected).norm() / expected.norm()).item<double>();
  EXPECT_LT(oracle_error(native.run(tokens, 512), expected), theirs);
  EXPECT_LT(oracle_error(torch_backend.run(tokens, 512), expected), theirs);
}

INSTANTIATE_TEST_SUITE_P(Variants, LlamaVariants,
                         testing::Values("gqa", "mha", "head128", "untied", "biases", "llama3", "yarn", "linear",
                                         "dynamic", "qwen3", "olmo2", "smollm3", "partial", "granite", "gemma2",
                                         "gemma3", "experts", "normalized_experts"));

}  // namespace
}  // namespace smartkv
