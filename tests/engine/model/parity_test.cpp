// Compares SmolLM2 in f32 with Hugging Face transformers. The fixtures are made by tests/fixtures/model/make.py.
#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "engine/model/llama.h"

namespace smartkv {
namespace {

class Parity : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto weights = Weights::open(SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    const ModelOptions options{.dtype = DataType::kF32};
    pool_ = new ThreadPool(2);
    model_ = load_llama(*weights, options, *pool_).release();
    const CacheShape shape = llama_cache_shape(weights->config(), options);
    policy_ = make_policy({shape, PagePool::create(shape)}, nullptr).release();
    fixture_ = new nlohmann::json(nlohmann::json::parse(std::ifstream(SMARTKV_FIXTURES "/model/smollm2_f32.json")));
  }
  static void TearDownTestSuite() {
    delete fixture_;
    delete policy_;
    delete model_;
    delete pool_;
  }

  static inline ThreadPool* pool_;
  static inline Model* model_;
  static inline KvCachePolicy* policy_;
  static inline nlohmann::json* fixture_;
};

TEST_F(Parity, LogitsAndGreedyTokensEqualTransformers) {
  std::ifstream file(SMARTKV_FIXTURES "/model/smollm2_f32.bin", std::ios::binary);
  const auto vocab = static_cast<size_t>(model_->config().vocab_size), stride = (*fixture_)["stride"].get<size_t>();
  struct Continued {
    std::unique_ptr<SequenceCache> cache;
    std::vector<TokenId> greedy, expected;
  };
  std::vector<Continued> all;
  std::vector<float> rows;  // the last logits of each prompt
  for (const auto& prompt : (*fixture_)["prompts"]) {
    const std::vector<TokenId> tokens = prompt["tokens"];
    const auto n = static_cast<int64_t>(tokens.size());
    SCOPED_TRACE("prompt of " + std::to_string(n) + " tokens");
    Continued& continued = all.emplace_back(policy_->new_sequence(0), std::vector<TokenId>{}, prompt["greedy"]);
    std::vector<float> logits(static_cast<size_t>(n) * vocab);
    for (int64_t start = 0; start < n; start += 300) {
      const int64_t size = std::min<int64_t>(300, n - start);
      const SequenceInput input{std::span(tokens).subspan(static_cast<size_t>(start), static_cast<size_t>(size)),
                                continued.cache.get(), size};
      model_->forward({&input, 1}, logits.data() + static_cast<size_t>(start) * vocab);
    }
    double worst = 0;
    for (const size_t position : prompt["positions"].get<std::vector<size_t>>()) {
      for (size_t token = 0; token < vocab; token += stride) {
        float expected = 0;
        ASSERT_TRUE(file.read(reinterpret_cast<char*>(&expected), sizeof expected));
        worst = std::max(worst, std::abs(static_cast<double>(logits[position * vocab + token]) - expected));
      }
    }
    EXPECT_LT(worst, 1e-3);
    rows.insert(rows.end(), logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
  }
  // All prompts continue in one batch, which changes no bit and reads the weights once for all.
  std::vector<SequenceInput> inputs(all.size());
  for (size_t step = 0; step < all[0].expected.size(); ++step) {
    for (size_t i = 0; i < all.size(); ++i) {
      const auto row = rows.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                 end = row + static_cast<std::ptrdiff_t>(vocab);
      all[i].greedy.push_back(static_cast<TokenId>(std::max_element(row, end) - row));
      inputs[i] = {{&all[i].greedy.back(), 1}, all[i].cache.get(), 1};
    }
    model_->forward(inputs, rows.data());
  }
  for (const Continued& continued : all) EXPECT_EQ(continued.greedy, continued.expected);
}

}  // namespace
}  // namespace smartkv
