#include "cache/summaries/probe_queries.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "cache/dense_layer.h"

namespace smartkv {
namespace {

constexpr int64_t kProbeDim = 32, kProbeTokens = 20;

// A probe query at the last of kProbeTokens tokens. The keys lie along the first channel and grow with their position.
// Query head g has the value g + 1 there.
class ProbeQueriesTest : public testing::Test {
 protected:
  ProbeQueriesTest() : tail_(context_.pool) {
    tail_.reserve(0, kProbeTokens);
    for (int64_t t = 0; t < kProbeTokens; ++t) {
      std::vector<float> k(kProbeDim, 0.0f), v(kProbeDim, 0.0f);
      k[0] = static_cast<float>(t);
      tail_.write(t, {k.data(), v.data(), kProbeDim, 0, 1});
    }
  }
  SampledQueries sampled(int64_t group, ProbeQueries* queries) const {
    std::vector<float> q(static_cast<size_t>(group * kProbeDim), 0.0f), mass(kProbeTokens, 0.0f);
    for (int64_t g = 0; g < group; ++g) {
      q[static_cast<size_t>(g * kProbeDim)] = static_cast<float>(g + 1);
      for (int64_t t = 0; t < kProbeTokens; ++t) {
        const float share = std::exp(scale_ * static_cast<float>((g + 1) * t) - log_norm(g));
        mass[static_cast<size_t>(t)] = std::max(mass[static_cast<size_t>(t)], share);
      }
    }
    StoreProbe probe{kProbeTokens - 1, q, mass.data(), kProbeTokens};
    probe.n_tail = kProbeTokens;
    queries->add(shape_, probe);
    return queries->sampled(context_, tail_, {})[0];
  }
  float log_norm(int64_t g) const {
    double sum = 0;
    for (int64_t t = 0; t < kProbeTokens; ++t)
      sum += std::exp(static_cast<double>(scale_) * static_cast<double>((g + 1) * t));
    return static_cast<float>(std::log(sum));
  }

  const float scale_ = 1 / std::sqrt(static_cast<float>(kProbeDim));
  CacheShape shape_{1, 1, kProbeDim, kernels::KvType::kF32};
  PolicyContext context_{shape_, PagePool::create(shape_)};
  DenseLayer tail_;
};

TEST_F(ProbeQueriesTest, KeepsEveryQueryOfAGroupAndKnowsItsDenominator) {
  ProbeQueries queries;
  const SampledQueries found = sampled(3, &queries);
  ASSERT_EQ(found.n, 3);
  for (int64_t g = 0; g < 3; ++g) {
    EXPECT_FLOAT_EQ(found.q[static_cast<size_t>(g * kProbeDim)], scale_ * static_cast<float>(g + 1));
    // The group's largest share gives only a lower bound.
    EXPECT_LE(found.log_norm[static_cast<size_t>(g)], log_norm(g) + 1e-4f);
  }
  EXPECT_NEAR(found.log_norm[2], log_norm(2), 1e-4);  // exact for the query that has the largest share
  EXPECT_LE(queries.bytes(), ProbeQueries::most_probe_bytes(shape_));
}

TEST_F(ProbeQueriesTest, SpreadsWhatItKeepsOverALargeGroup) {
  ProbeQueries queries;
  const SampledQueries found = sampled(20, &queries);
  ASSERT_EQ(found.n, 8);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_FLOAT_EQ(found.q[static_cast<size_t>(i * kProbeDim)], scale_ * static_cast<float>(i * 20 / 8 + 1));
  }
  EXPECT_LE(queries.bytes(), ProbeQueries::most_probe_bytes(shape_));
}

}  // namespace
}  // namespace smartkv
