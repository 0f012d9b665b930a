#include "engine/calibration/fit_ridge.h"

#include <random>

#include <gtest/gtest.h>

#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

TEST(FitRidge, FindsALinearMap) {
  ThreadPool threads(2);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const std::vector<float> map = {2, -0.5f, 0, 3};
  std::vector<float> features;
  std::vector<double> labels;
  for (int sample = 0; sample < 500; ++sample) {
    const std::vector<float> x = {normal(random), 10 * normal(random) + 5, normal(random), 1};
    features.insert(features.end(), x.begin(), x.end());
    labels.push_back(static_cast<double>(2 * x[0] - 0.5f * x[1] + 3 + 0.1f * normal(random)));
  }
  const std::vector<float> found = fit_ridge(threads, features, labels);
  ASSERT_EQ(found.size(), map.size());
  for (size_t i = 0; i < map.size(); ++i) EXPECT_NEAR(found[i], map[i], 0.05) << i;
}

// A feature that is the same in all samples, or in few of them, leaves the equations singular without the penalty.
TEST(FitRidge, FewOrEqualSamplesHaveAFiniteResult) {
  ThreadPool threads(1);
  const std::vector<float> features = {4, 1, 0, 1, 4, 3, 0, 1};
  const std::vector<double> labels = {1, 2};
  const std::vector<float> found = fit_ridge(threads, features, labels);
  EXPECT_NEAR(found[0] * 4 + found[1] * 2 + found[3], 1.5, 1e-5);
  for (const float weight : found) EXPECT_TRUE(std::isfinite(weight));
}

}  // namespace
}  // namespace smartkv
