// Compares the planned memory of a model with that of the loaded one.
#include "engine/model/llama_footprint.h"

#include <gtest/gtest.h>

#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

void expect_loaded(const ModelConfig& config, const LlamaOptions& options) {
  const TinyWeights weights(config);
  ThreadPool pool(1);
  EXPECT_EQ(llama_weight_bytes(weights, options), load_llama(weights, options, pool)->weight_bytes()) << options.weights;
}

TEST(LlamaFootprint, IsThatOfTheLoadedModel) {
  for (const char* weights : {"bf16", "int8", "int4"}) expect_loaded(tiny_config(), {"bf16", weights, 0});
  expect_loaded(tiny_config(), {"f32", "f32", 0});
}

TEST(LlamaFootprint, CountsWhatRelativesAdd) {
  ModelConfig config = tiny_config();
  config.tie_word_embeddings = false;
  config.attention_bias = config.mlp_bias = true;
  for (const QkNorm norm : {QkNorm::kHead, QkNorm::kProjection}) {
    config.qk_norm = norm;
    expect_loaded(config, {"bf16", "auto", 0});
  }
}

TEST(LlamaFootprint, APassGrowsWithItsTokens) {
  const ModelConfig config = tiny_config();
  EXPECT_EQ(llama_pass_bytes(config, {}, 0), 0);
  EXPECT_EQ(llama_pass_bytes(config, {}, 64), 64 * llama_pass_bytes(config, {}, 1));
  EXPECT_GT(llama_pass_bytes(config, {"f32", "f32", 0}, 1), llama_pass_bytes(config, {}, 1));
}

}  // namespace
}  // namespace smartkv
