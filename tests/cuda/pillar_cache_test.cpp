// A draft over the tokens to which the last verification attended, on the emulated device, compared with the CPU.
#include "engine/speculation/pillar_cache.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/cuda/kv_backend.h"
#include "tests/cache/cache_driver.h"

namespace smartkv {
namespace {

TEST(PillarOnDevice, ReadsWhatItDoesOnTheCpu) {
  ThreadPool threads(2);
  const CacheShape shape{2, 2, 64, kernels::KvType::kBf16};
  std::vector<std::vector<float>> outputs;
  std::vector<std::vector<int64_t>> positions;
  const std::shared_ptr<kernels::KvBackend> backends[] = {kernels::make_cpu_kv_backend(&threads),
                                                          kernels::cuda::make_cuda_kv_backend(0)};
  for (const auto& backend : backends) {
    const PolicyContext context{shape, PagePool::create(shape, backend, 0), &threads};
    CacheDriver driver(shape, 4, backend);
    const auto full_policy = make_policy(context, "full");
    const auto draft_policy = make_pillar_policy(context, {{"policy", "pillar_attn"}, {"tokens", 128}}, 4);
    const auto full = full_policy->new_sequence(0), draft = draft_policy->new_sequence(270);
    PillarMirror mirror(full.get(), static_cast<PillarCache*>(draft.get()));
    driver.run(&mirror, 270, 64);
    for (const int64_t end : {272, 273}) {
      driver.pass(draft.get(), 4, 1);  // a draft
      draft->truncate(mirror.tokens());
      driver.pass(&mirror, 5);
      mirror.truncate(end);
      mirror.commit(end);
      outputs.push_back(driver.pass(draft.get(), 1).front());
      draft->truncate(end);
    }
    positions.push_back(draft->positions(1, 0));
  }
  EXPECT_EQ(positions[0], positions[1]);
  for (size_t pass = 0; pass < 2; ++pass) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < outputs[pass].size(); ++i) {
      error += std::pow(outputs[pass + 2][i] - outputs[pass][i], 2);
      norm += std::pow(outputs[pass][i], 2);
    }
    EXPECT_LT(std::sqrt(error / norm), 0.02);
  }
}

}  // namespace
}  // namespace smartkv
