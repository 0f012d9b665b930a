// A LLaMA with caches on the emulated device, compared with the same model on the CPU.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/cuda/kv_backend.h"
#include "engine/speculation/mirrored_cache.h"
#include "tests/cuda/device_rows.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/model/served_policy.h"

namespace smartkv {
namespace {

class ServedOnDevice : public testing::TestWithParam<const char*> {};

TEST_P(ServedOnDevice, ComputesAsOnTheCpu) {
  const nlohmann::json spec = nlohmann::json::parse(GetParam());
  const TinyWeights weights(quantizable_config());
  const std::vector<TokenId> tokens = some_tokens(330, weights.config().vocab_size, 3);
  ThreadPool pool(2);
  Served cpu(weights, "bf16"), device(weights, "bf16", "auto", native_loader(pool), make_cuda_cache_backend(0));
  EXPECT_TRUE(cpu.model->batch_invariant());
  EXPECT_FALSE(device.model->batch_invariant());
  Served rows(weights, "bf16", "auto", device_rows_loader(pool), make_cuda_cache_backend(0));
  const PolicyRun expected = run_policy(&cpu, spec, tokens, 280);
  for (Served* const served : {&device, &rows}) {
    const PolicyRun found = run_policy(served, spec, tokens, 280);
    EXPECT_LT(relative_error(found.logits, expected.logits), 0.03);  // rounding of bf16 activations
    EXPECT_EQ(found.stats.tokens_kept, expected.stats.tokens_kept);
    EXPECT_EQ(found.stats.bytes, expected.stats.bytes);
  }
}

// A mirrored draft keeps rows until they are committed. These rows lie where the pass has them, on host or device.
TEST(MirroredOnDevice, DraftsHoldWhatTheyWouldAlone) {
  const TinyWeights weights(quantizable_config());
  const std::vector<TokenId> tokens = some_tokens(330, weights.config().vocab_size, 3);
  ThreadPool pool(2);
  for (const BackendLoader& loader : {native_loader(pool), device_rows_loader(pool)}) {
    Served served(weights, "bf16", "auto", loader, make_cuda_cache_backend(0));
    const auto policy = served.model->make_policy(served.context, "k8v8");
    const auto alone = policy->new_sequence(0), draft = policy->new_sequence(0),
               target = served.policy->new_sequence(0);
    MirroredCache mirror(served.context, target.get(), draft.get());
    std::vector<float> logits(static_cast<size_t>(weights.config().vocab_size)), expected = logits;
    const auto pass = [&](SequenceCache* cache, int64_t n, float* to) {
      const auto at = static_cast<size_t>(cache->tokens());
      const SequenceInput input{std::span(tokens).subspan(at, static_cast<size_t>(n)), cache, 1};
      served.model->forward({&input, 1}, to);
      cache->commit(cache->tokens());
    };
    for (const int64_t n : {100, 229}) pass(&mirror, n, logits.data());
    for (int64_t left = 329; left > 0;) {
      const int64_t n = std::min(left, alone->next_boundary() - alone->tokens());
      pass(alone.get(), n, expected.data());
      left -= n;
    }
    ASSERT_EQ(draft->tokens(), 329);
    EXPECT_EQ(draft->stats().bytes, alone->stats().bytes);
    pass(draft.get(), 1, logits.data());
    pass(alone.get(), 1, expected.data());
    // The target's passes attend to exact pages, too, not only to quantized ones.
    EXPECT_LT(relative_error(logits, expected), 0.1);
  }
}

// An engine on the emulated device with a model that drafts for itself.
class DraftsOnDevice : public testing::Test {
 protected:
  DraftsOnDevice() {
    ModelConfig config = quantizable_config();
    config.vocab_size = kFakeVocab;
    weights_ = std::make_unique<TinyWeights>(config);
    EngineParts parts;
    parts.options.model.context_length = 512;
    parts.options.kv_cache_bytes = int64_t{64} << 20;
    parts.options.kv_offload_bytes = int64_t{8} << 20;
    parts.threads = std::make_unique<ThreadPool>(2);
    ModelOptions llama;
    llama.dtype = DataType::kBf16;
    const auto device = make_cuda_cache_backend(0);
    parts.model = make_llama(*weights_, llama, *parts.threads, device_rows_loader(*parts.threads), device);
    parts.tokenizer = std::make_unique<FakeTokenizer>();
    parts.cache_shape = llama_cache_shape(config, llama);
    engine_ = std::make_unique<EngineImpl>(std::move(parts));
  }
  std::vector<std::vector<TokenId>> answers(const nlohmann::json& policy, const nlohmann::json& draft, bool offload) {
    GenerationRequest request = make_request(250, 20);
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    request.n = 2;
    request.kv_cache = policy;
    request.speculative = {{"method", "self"}, {"offload", offload}, {"adaptive", false}, {"kv_cache", draft}};
    const auto stream = engine_->submit(request);
    std::vector<std::vector<TokenId>> answers;
    for (const ChoiceResult& choice : read_all(*stream, 2)) {
      EXPECT_EQ(choice.error, "");
      answers.push_back(choice.tokens);
    }
    EXPECT_GT(stream->usage().speculation.accepted, 0);
    return answers;
  }

  std::unique_ptr<TinyWeights> weights_;
  std::unique_ptr<EngineImpl> engine_;
};

// With `offload`, the request's own cache is in host memory and the draft's on the device. The answers must not change.
TEST_F(DraftsOnDevice, AnswersAreTheSameWhereTheCacheIsTheHosts) {
  for (const char* const policy : {"full", "k8v8"}) {
    const nlohmann::json draft = {{"policy", "streaming"}, {"tokens", 192}};
    EXPECT_EQ(answers(policy, draft, true), answers(policy, draft, false));
  }
  EXPECT_GT(engine_->stats().kv_offload_bytes_budget, 0);
  GenerationRequest large = make_request(150, 300);
  large.n = 30;
  large.speculative = {{"method", "self"}, {"offload", true}};
  EXPECT_NE(engine_->plan(large).front().problem.find("kv_offload_bytes"), std::string::npos);
  try {
    engine_->submit(large);
    FAIL() << "it was taken";
  } catch (const RequestError& error) {
    EXPECT_EQ(error.kind, RequestError::Kind::kTooLarge);
    EXPECT_NE(std::string(error.what()).find("kv_offload_bytes"), std::string::npos) << error.what();
  }
}

TEST_F(DraftsOnDevice, MayReadWhatAVerificationAttendedTo) {
  for (const auto& choice : answers("full", {{"policy", "pillar_attn"}, {"tokens", 128}}, false))
    EXPECT_EQ(choice.size(), 20u);
}

class NormsOnDevice : public testing::TestWithParam<QkNorm> {};

TEST_P(NormsOnDevice, OfQueriesAndKeysAreComputedAsOnTheCpu) {
  ModelConfig config = quantizable_config();
  config.qk_norm = GetParam();
  const TinyWeights weights(config);
  const std::vector<TokenId> tokens = some_tokens(70, config.vocab_size, 3);
  ThreadPool pool(2);
  Served cpu(weights, "bf16"), rows(weights, "bf16", "auto", device_rows_loader(pool), make_cuda_cache_backend(0));
  EXPECT_EQ(rows.model->weight_bytes(), cpu.model->weight_bytes());
  EXPECT_LT(relative_error(rows.run(tokens, 50), cpu.run(tokens, 50)), 0.03);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NormsOnDevice, testing::Values(QkNorm::kHead, QkNorm::kProjection));

INSTANTIATE_TEST_SUITE_P(Policies, ServedOnDevice,
                         testing::Values(R"("full")", R"({"policy": "k8v4"})",
                                         R"({"policy": "mixed_precision", "bits": 6, "horizon": 1024})",
                                         R"({"policy": "gated_eviction", "tokens": 256})",
                                         R"({"policy": "snapkv", "tokens": 256})", R"({"policy": "sparse"})",
                                         R"({"policy": "block_summary", "tokens": 256, "window": 64, "salient": 4})"));

TEST(DeviceKvBackend, RefusesWhatTheKernelsDoNotRun) {
  const TinyWeights weights(quantizable_config());
  ThreadPool pool(1);
  try {
    const Served served(weights, "f32", "auto", native_loader(pool), make_cuda_cache_backend(0));
    FAIL() << "no error";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("KV cache on cuda: "), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace smartkv
