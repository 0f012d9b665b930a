// The served model against the plain LibTorch one, and the promises of Model::forward.
#include "engine/model/llama.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "cache/policy.h"
#include "engine/torch/torch_llama.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

std::vector<TokenId> some_tokens(int64_t n, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>(random() % static_cast<uint64_t>(vocab)));
  return tokens;
}

struct Served {
  ThreadPool pool{2};
  std::unique_ptr<Model> model;
  PolicyContext context;
  std::unique_ptr<KvCachePolicy> policy;

  Served(const Weights& weights, const std::string& dtype, const std::string& storage = "auto") {
    LlamaOptions options;
    options.dtype = dtype;
    options.weights = storage;
    model = load_llama(weights, options, pool);
    context.shape = llama_cache_shape(weights.config(), options);
    context.pool = PagePool::create(context.shape);
    policy = make_policy(context, nullptr);
  }

  // Logits of all tokens, fed in chunks. [tokens, vocab]
  std::vector<float> run(const std::vector<TokenId>& tokens, int64_t chunk) {
    const auto cache = policy->new_sequence(0);
    const int64_t vocab = model->config().vocab_size, n = static_cast<int64_t>(tokens.size());
    std::vector<float> logits(static_cast<size_t>(n * vocab));
    for (int64_t start = 0; start < n; start += chunk) {
      const int64_t size = std::min(chunk, n - start);
      const SequenceInput input{std::span(tokens).subspan(static_cast<size_t>(start), static_cast<size_t>(size)), cache.get(), size};
      model->forward({&input, 1}, logits.data() + start * vocab);
    }
    return logits;
  }
};

double relative_error(const std::vector<float>& found, const torch::Tensor& expected) {
  const torch::Tensor actual = torch::from_blob(const_cast<float*>(found.data()), expected.sizes().vec()).to(torch::kFloat64);
  return ((actual - expected).norm() / expected.norm()).item<double>();
}

ModelConfig variant(const std::string& name) {
  ModelConfig config = tiny_config();
  if (name == "head128") config.head_dim = 128;
  if (name == "mha") config.n_kv_heads = config.n_heads;
  if (name == "untied") config.tie_word_embeddings = false;
  if (name == "biases") config.attention_bias = config.mlp_bias = true;
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
  Served served(weights, "f32");
  EXPECT_LT(relative_error(served.run(tokens, 512), expected), 1e-5);
}

// Random weights amplify rounding; LibTorch's own bf16 says by how much.
TEST_P(LlamaVariants, Bf16IsNearerThanLibTorchInBf16) {
  const TinyWeights weights(variant(GetParam()));
  const std::vector<TokenId> tokens = some_tokens(150, weights.config().vocab_size, 6);
  const torch::Tensor input = torch::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())).unsqueeze(0);
  const torch::Tensor expected = TorchLlama(weights, torch::kFloat64).forward(input)[0];
  Served served(weights, "bf16");
  const torch::Tensor rounded = TorchLlama(weights, torch::kBFloat16).forward(input)[0].to(torch::kFloat64);
  const double theirs = ((rounded - expected).norm() / expected.norm()).item<double>();
  EXPECT_LT(relative_error(served.run(tokens, 512), expected), theirs);
}

INSTANTIATE_TEST_SUITE_P(Variants, LlamaVariants,
                         testing::Values("gqa", "mha", "head128", "untied", "biases", "llama3", "yarn", "linear", "dynamic"));

class LlamaTypes : public testing::TestWithParam<const char*> {};

TEST_P(LlamaTypes, LogitsDoNotDependOnChunksOrBatch) {
  const TinyWeights weights(tiny_config());
  Served served(weights, std::string(GetParam()) == "f32" ? "f32" : "bf16", GetParam());
  const std::vector<TokenId> a = some_tokens(200, 259, 1), b = some_tokens(33, 259, 2), c = some_tokens(1, 259, 3);
  const std::vector<float> whole = served.run(a, 512);
  for (const int64_t chunk : {1, 7, 64, 100}) EXPECT_EQ(whole, served.run(a, chunk)) << "chunks of " << chunk;

  const std::vector<float> alone_b = served.run(b, 512), alone_c = served.run(c, 512);
  const auto cache_a = served.policy->new_sequence(0), cache_b = served.policy->new_sequence(0), cache_c = served.policy->new_sequence(0);
  const SequenceInput batch[] = {{a, cache_a.get(), 3}, {b, cache_b.get(), 0}, {c, cache_c.get(), 1}};
  std::vector<float> logits(4 * 259);
  served.model->forward(batch, logits.data());
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 3 * 259, whole.end() - 3 * 259));
  EXPECT_TRUE(std::equal(logits.begin() + 3 * 259, logits.end(), alone_c.begin()));
  EXPECT_EQ(cache_b->tokens(), 33);
  // The sequence whose logits nobody wanted has the cache that it would have had.
  const TokenId next = 17;
  const SequenceInput step{{&next, 1}, cache_b.get(), 1};
  std::vector<float> one(259);
  served.model->forward({&step, 1}, one.data());
  std::vector<TokenId> longer = b;
  longer.push_back(next);
  const std::vector<float> expected = served.run(longer, 512);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), expected.end() - 259));
}

INSTANTIATE_TEST_SUITE_P(Types, LlamaTypes, testing::Values("f32", "bf16", "int8", "int4"));

TEST(Llama, RewindsToWhereItWas) {
  const TinyWeights weights(tiny_config());
  Served served(weights, "f32");
  const std::vector<TokenId> tokens = some_tokens(100, 259, 9), other = some_tokens(20, 259, 10);
  const std::vector<float> expected = served.run(tokens, 512);
  const auto cache = served.policy->new_sequence(0);
  std::vector<float> logits(200 * 259);
  const auto feed = [&](std::span<const TokenId> part) {
    const SequenceInput input{part, cache.get(), static_cast<int64_t>(part.size())};
    served.model->forward({&input, 1}, logits.data());
  };
  feed(std::span(tokens).first(70));
  feed(other);
  cache->truncate(70);
  feed(std::span(tokens).subspan(70));
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 30 * 259, expected.begin() + 70 * 259));
}

TEST(Llama, UnknownTypesAreNamed) {
  const TinyWeights weights(tiny_config());
  EXPECT_THROW(Served(weights, "fp8"), ModelError);
  EXPECT_THROW(Served(weights, "bf16", "int3"), ModelError);
  EXPECT_THROW(Served(weights, "f32", "int8"), ModelError);
}

}  // namespace
}  // namespace smartkv
