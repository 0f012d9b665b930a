// Scores by gates (cache/policies/gated_eviction/cuda) on the emulator, compared with those of the CPU.
#include "cache/policies/gated_eviction/gate_jobs.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cuda/kv_backend.h"
#include "kernels/pending_results.h"
#include "tests/cuda/test_layer.h"

namespace smartkv::kernels {
namespace {

class CudaGateJobs : public DeviceComparison {
 protected:
  // Returns the CPU, a device, or a device without kernels of policies.
  static std::shared_ptr<KvBackend> backend(int which) {
    if (which == 0) return make_cpu_kv_backend(nullptr);
    if (which == 1) return make_cuda_cache_backend(0);
    return kernels::cuda::make_cuda_kv_backend(0);
  }
};

std::shared_ptr<const GateMaps> gate_of(int64_t heads, int64_t dim, int64_t n_layers) {
  auto gate = std::make_shared<GateMaps>();
  gate->n_kv_heads = heads;
  gate->head_dim = dim;
  gate->importance_heads = heads + 1;  // one more head, which another tensor-parallel rank has
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    auto of_layer = std::make_shared<GateMaps::Layer>();
    GateMaps::Layer& maps = *of_layer;
    gate->layers.push_back(of_layer);
    for (size_t i = 0; i < GateMaps::kDepth; ++i) {
      const int64_t out = i == GateMaps::kDepth - 1 ? 1 : GateMaps::kHidden, in = i == 0 ? dim : GateMaps::kHidden;
      maps[i].weight = make_packed(WeightType::kBf16, out, in);
      for (int64_t group = 0; group < (out + 15) / 16; ++group) {
        std::vector<float> rows(static_cast<size_t>(16 * in), 0.0f);
        for (int64_t at = 0; at < std::min<int64_t>(16, out) * in; ++at) rows[static_cast<size_t>(at)] = normal(random);
        pack_lanes(maps[i].weight, group, rows.data());
      }
      for (int64_t row = 0; row < out; ++row) maps[i].bias.push_back(normal(random));
    }
    auto& importance =
        gate->importance.emplace_back(static_cast<size_t>(gate->importance_heads * (gate->importance_features() + 1)));
    for (float& weight : importance) weight = normal(random);
  }
  return gate;
}

TEST_P(CudaGateJobs, GatesScoreTokensAsOnTheCpu) {
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{1, 64}, {3, 80}, {2, 128}, {1, 256}}) {
    const auto gate = gate_of(heads, dim, 2);
    for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, 64}, {5, 1}, {61, 70}}) {
      std::vector<float> angles(static_cast<size_t>(n * dim));
      for (int64_t i = 0; i < n * dim / 2; ++i) {
        const int64_t at = i / (dim / 2) * dim + i % (dim / 2);
        angles[static_cast<size_t>(at)] = 1.2f * std::cos(0.1f * static_cast<float>(i));  // YaRN scales them
        angles[static_cast<size_t>(at + dim / 2)] = 1.2f * std::sin(0.1f * static_cast<float>(i));
      }
      std::vector<float> scores[3], importance[3], norms[3];
      for (const int which : {0, 1, 2}) {
        Layer layer{backend(which), heads, dim};
        layer.add_dense(3, 7);
        const auto uploaded = upload(*layer.backend, gate);
        scores[which].resize(static_cast<size_t>(heads * n));
        norms[which] = scores[which];
        importance[which].resize(static_cast<size_t>(gate->importance_heads * n));
        std::vector<float> unasked(scores[which].size());
        const std::vector<KvSegment> reversed{layer.segments[2], layer.segments[1], layer.segments[0]};
        PendingResults results(*layer.backend);
        const TokenScoring layers[] = {
            {0, layer.segments, first, n, angles.data(), unasked.data(), nullptr},
            {1, reversed, first, n, angles.data(), scores[which].data(), importance[which].data()}};
        const CacheShape shape{2, heads, dim, kType};
        score_tokens(*layer.backend, nullptr, shape, uploaded, layers);
        const TokenScoring norm{0, layer.segments, first, n, nullptr, norms[which].data(), nullptr};
        score_tokens(*layer.backend, nullptr, shape, nullptr, {&norm, 1});
        results.wait();
      }
      // Keys and activations are rounded to bf16, which differs by one step here and there.
      expect_near(scores[1], scores[0], 0.02f, 0.02f);
      expect_near(importance[1], importance[0], 1e-4f, 1e-4f);
      expect_near(norms[1], norms[0], 1e-5f, 0.0f);
      // Without kernels of its own, a device reads the same keys for the host.
      EXPECT_EQ(scores[2], scores[0]);
      EXPECT_EQ(importance[2], importance[0]);
      EXPECT_EQ(norms[2], norms[0]);
    }
  }
}

TEST(CudaGates, AreOnTheDeviceOnce) {
  const auto backend = make_cuda_cache_backend(0);
  const auto gate = gate_of(1, 64, 1), other = gate_of(1, 64, 1);
  const auto uploaded = upload(*backend, gate);
  EXPECT_EQ(upload(*backend, gate), uploaded);
  EXPECT_NE(upload(*backend, other), uploaded);
  EXPECT_EQ(upload(*backend->with_host_pages(), gate), uploaded);
}

TEST(CudaGates, AreThoseOfTheirBackendAndShape) {
  const auto backend = make_cuda_cache_backend(0);
  std::vector<float> scores(1);
  const TokenScoring job{0, {}, 0, 1, nullptr, scores.data(), nullptr};
  const auto host = upload(*make_cpu_kv_backend(nullptr), gate_of(1, 64, 1));
  EXPECT_THROW(score_tokens(*backend, nullptr, {1, 1, 64, kType}, host, {&job, 1}), std::invalid_argument);
  const auto wide = upload(*backend, gate_of(1, 128, 1));
  EXPECT_THROW(score_tokens(*backend, nullptr, {1, 1, 64, kType}, wide, {&job, 1}), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaGateJobs, kOrders, name_of_order);

}  // namespace
}  // namespace smartkv::kernels
