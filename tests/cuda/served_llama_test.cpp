// A LLaMA whose caches live on the emulated device, against the same one on the CPU.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/kv_backend.h"
#include "tests/cuda/device_rows.h"
#include "tests/engine/model/served_policy.h"

namespace smartkv {
namespace {

class ServedOnDevice : public testing::TestWithParam<const char*> {};

TEST_P(ServedOnDevice, ComputesAsOnTheCpu) {
  const nlohmann::json spec = nlohmann::json::parse(GetParam());
  const TinyWeights weights(quantizable_config());
  const std::vector<TokenId> tokens = some_tokens(330, weights.config().vocab_size, 3);
  ThreadPool pool(2);
  Served cpu(weights, "bf16"), device(weights, "bf16", "auto", native_loader(pool), kernels::cuda::make_cuda_kv_backend(0));
  EXPECT_TRUE(cpu.model->batch_invariant());
  EXPECT_FALSE(device.model->batch_invariant());
  Served rows(weights, "bf16", "auto", device_rows_loader(pool), kernels::cuda::make_cuda_kv_backend(0));
  const PolicyRun expected = run_policy(&cpu, spec, tokens, 280);
  for (Served* const served : {&device, &rows}) {
    const PolicyRun found = run_policy(served, spec, tokens, 280);
    EXPECT_LT(relative_error(found.logits, expected.logits), 0.03);  // of bf16 activations
    EXPECT_EQ(found.stats.tokens_kept, expected.stats.tokens_kept);
    EXPECT_EQ(found.stats.bytes, expected.stats.bytes);
  }
}

class NormsOnDevice : public testing::TestWithParam<QkNorm> {};

TEST_P(NormsOnDevice, OfQueriesAndKeysAreComputedAsOnTheCpu) {
  ModelConfig config = quantizable_config();
  config.qk_norm = GetParam();
  const TinyWeights weights(config);
  const std::vector<TokenId> tokens = some_tokens(70, config.vocab_size, 3);
  ThreadPool pool(2);
  Served cpu(weights, "bf16"), rows(weights, "bf16", "auto", device_rows_loader(pool), kernels::cuda::make_cuda_kv_backend(0));
  EXPECT_EQ(rows.model->weight_bytes(), cpu.model->weight_bytes());
  EXPECT_LT(relative_error(rows.run(tokens, 50), cpu.run(tokens, 50)), 0.03);
}

INSTANTIATE_TEST_SUITE_P(Kinds, NormsOnDevice, testing::Values(QkNorm::kHead, QkNorm::kProjection));

INSTANTIATE_TEST_SUITE_P(Policies, ServedOnDevice,
                         testing::Values(R"("full")", R"({"policy": "k8v4"})",
                                         R"({"policy": "mixed_precision", "bits": 6, "horizon": 1024})",
                                         R"({"policy": "gated_eviction", "tokens": 256})",
                                         R"({"policy": "snapkv", "tokens": 256})",
                                         R"({"policy": "block_summary", "tokens": 256, "window": 64, "salient": 4})"));

TEST(DeviceKvBackend, RefusesWhatTheKernelsDoNotRun) {
  const TinyWeights weights(quantizable_config());
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
