// A LLaMA whose caches live on the emulated device, against the same one on the CPU.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/model/native_backend.h"
#include "engine/model/policy_context.h"
#include "kernels/cuda/kv_backend.h"
#include "tests/cache/random_gate.h"
#include "tests/engine/model/served_llama.h"

namespace smartkv {
namespace {

struct Answer {
  std::vector<float> logits;
  CacheStats stats;
};

// A prompt in passes that end at boundaries, then token by token.
Answer run(Served* served, const nlohmann::json& spec, const std::vector<TokenId>& tokens, int64_t prompt) {
  served->context.threads = &served->pool;
  served->context.rope = [served](int64_t position, float* cos, float* sin) { served->model->rope_angles(position, cos, sin); };
  served->context.load_gate = [served](const std::string&) { return random_gate(served->context.shape); };
  const auto policy = make_policy(served->context, spec);
  const auto cache = policy->new_sequence(prompt);
  const int64_t vocab = served->model->config().vocab_size, end = static_cast<int64_t>(tokens.size());
  Answer result;
  result.logits.resize(static_cast<size_t>(end * vocab));
  while (cache->tokens() < end) {
    const int64_t at = cache->tokens();
    const int64_t n = at < prompt ? std::min({int64_t{100}, prompt - at, cache->next_boundary() - at}) : 1;
    const SequenceInput input{std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), cache.get(), n};
    served->model->forward({&input, 1}, result.logits.data() + at * vocab);
    cache->commit(cache->tokens());
  }
  result.stats = cache->stats();
  return result;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / size);
}

ModelConfig config_of_pages() {
  ModelConfig config = tiny_config();
  config.head_dim = 64;  // the quantised pages'
  return config;
}

BackendLoader native_loader(ThreadPool& pool) {
  return [&pool](const Weights& weights, kernels::KvType type) {
    return load_native_backend(weights, type == kernels::KvType::kF32 ? kernels::WeightType::kF32 : kernels::WeightType::kBf16,
                               type, pool, nullptr);
  };
}

class ServedOnDevice : public testing::TestWithParam<const char*> {};

TEST_P(ServedOnDevice, ComputesAsOnTheCpu) {
  const nlohmann::json spec = nlohmann::json::parse(GetParam());
  const TinyWeights weights(config_of_pages());
  const std::vector<TokenId> tokens = some_tokens(330, weights.config().vocab_size, 3);
  ThreadPool pool(2);
  Served cpu(weights, "bf16"), device(weights, "bf16", "auto", native_loader(pool), kernels::cuda::make_cuda_kv_backend(0));
  EXPECT_TRUE(cpu.model->batch_invariant());
  EXPECT_FALSE(device.model->batch_invariant());
  const Answer expected = run(&cpu, spec, tokens, 280), found = run(&device, spec, tokens, 280);
  EXPECT_LT(relative_error(found.logits, expected.logits), 0.03);  // of bf16 activations
  EXPECT_EQ(found.stats.tokens_kept, expected.stats.tokens_kept);
  EXPECT_EQ(found.stats.bytes, expected.stats.bytes);
}

INSTANTIATE_TEST_SUITE_P(Policies, ServedOnDevice,
                         testing::Values(R"("full")", R"({"policy": "k8v4"})",
                                         R"({"policy": "mixed_precision", "bits": 6, "horizon": 1024})",
                                         R"({"policy": "gated_eviction", "tokens": 256})",
                                         R"({"policy": "block_summary", "tokens": 256, "window": 64, "salient": 4})"));

TEST(DeviceKvBackend, RefusesWhatTheKernelsDoNotRun) {
  const TinyWeights weights(config_of_pages());
  ThreadPool pool(1);
  try {
    const Served served(weights, "f32", "auto", native_loader(pool), kernels::cuda::make_cuda_kv_backend(0));
    FAIL() << "no error";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("KV cache on cuda: "), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace smartkv
