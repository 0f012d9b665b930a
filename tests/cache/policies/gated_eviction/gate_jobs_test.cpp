#include "cache/policies/gated_eviction/gate_jobs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/forwarding_kv_backend.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

// Kernels that score every token with 7.
class SevenKernels final : public GateKernels {
 public:
  std::shared_ptr<const UploadedGate> upload(std::shared_ptr<const GateMaps> maps) override {
    return uploaded = std::make_shared<const UploadedGate>(std::move(maps));
  }
  void score(const CacheShape& shape, std::shared_ptr<const UploadedGate> gate,
             std::span<const TokenScoring> layers) override {
    EXPECT_EQ(gate, uploaded);
    for (const TokenScoring& layer : layers) std::fill_n(layer.scores, shape.n_kv_heads * layer.n, 7.0f);
  }

  std::shared_ptr<const UploadedGate> uploaded;
};

class BackendWithKernels final : public kernels::ForwardingKvBackend {
 public:
  explicit BackendWithKernels(std::unique_ptr<kernels::PolicyKernels> own)
      : ForwardingKvBackend(kernels::make_cpu_kv_backend(nullptr)) {
    own_.push_back(std::move(own));
  }
  std::span<const std::unique_ptr<kernels::PolicyKernels>> policy_kernels() const override { return own_; }

 private:
  std::vector<std::unique_ptr<kernels::PolicyKernels>> own_;
};

TEST(GateJobs, TheBackendsOwnKernelsScore) {
  const auto backend = std::make_shared<BackendWithKernels>(std::make_unique<SevenKernels>());
  kernels::ForwardingKvBackend outer(backend);
  auto* const found = kernels::find_kernels<GateKernels>(outer);
  ASSERT_NE(found, nullptr);
  const auto gate = upload(outer, std::make_shared<const GateMaps>());
  EXPECT_EQ(gate, static_cast<SevenKernels*>(found)->uploaded);
  std::vector<float> scores(2 * 3);
  const TokenScoring job{0, {}, 0, 3, nullptr, scores.data(), nullptr};
  score_tokens(outer, nullptr, {1, 2, 16}, gate, {&job, 1});
  EXPECT_EQ(scores, std::vector<float>(6, 7.0f));
}

TEST(GateJobs, WithoutAGateTheScoresAreTheNormsOfKeys) {
  const auto backend = kernels::make_cpu_kv_backend(nullptr);
  EXPECT_EQ(kernels::find_kernels<GateKernels>(*backend), nullptr);
  constexpr int64_t kHeads = 2, kDim = 16, kTokens = 2 * kPageTokens, kHalf = kDim * kPageTokens * 4;
  constexpr int64_t kFirst = 5, kScored = 70;
  const CacheShape shape{1, kHeads, kDim, kernels::KvType::kF32};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> k(kTokens * kHeads * kDim);
  std::generate(k.begin(), k.end(), [&] { return normal(random); });
  std::vector<std::unique_ptr<kernels::PageMemory>> memory;
  std::vector<kernels::KvSegment> pages;
  for (int64_t page = 0; page < 2; ++page) {
    memory.push_back(std::make_unique<kernels::PageMemory>(backend, 2 * kHeads * kHalf));
    std::byte* const to = memory.back()->data();
    const float* const rows = k.data() + page * kPageTokens * kHeads * kDim;
    backend->write(shape.type, kHeads, kDim, {rows, rows, kHeads * kDim, 0, kPageTokens, to, to + kHalf, 2 * kHalf});
    pages.push_back({kernels::KvSegment::Format::kDense, kPageTokens, to, to + kHalf, 2 * kHalf});
  }
  ThreadPool threads(2);
  for (ThreadPool* const pool : {&threads, static_cast<ThreadPool*>(nullptr)}) {
    std::vector<float> scores(kHeads * kScored);
    const TokenScoring job{0, pages, kFirst, kScored, nullptr, scores.data(), nullptr};
    score_tokens(*backend, pool, shape, nullptr, {&job, 1});
    backend->finish();
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t i = 0; i < kScored; ++i) {
        const float* const key = k.data() + ((kFirst + i) * kHeads + head) * kDim;
        double squares = 0;
        for (int64_t d = 0; d < kDim; ++d) squares += std::pow(static_cast<double>(key[d]), 2);
        EXPECT_NEAR(scores[head * kScored + i], std::sqrt(squares), 1e-4) << head << ' ' << i;
      }
    }
  }
}

}  // namespace
}  // namespace smartkv
