#include "engine/sampling/logit_metrics.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "engine/sampling/row_scan.h"

namespace smartkv {
namespace {

TEST(LogitMetrics, AreThoseOfADirectComputation) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> p(1000), q(1000);
  for (size_t i = 0; i < p.size(); ++i) q[i] = (p[i] = normal(random)) + 0.1f * normal(random);
  double sum_p = 0, sum_q = 0, expected = 0;
  for (size_t i = 0; i < p.size(); ++i)
    sum_p += std::exp(static_cast<double>(p[i])), sum_q += std::exp(static_cast<double>(q[i]));
  for (size_t i = 0; i < p.size(); ++i) {
    expected += std::exp(static_cast<double>(p[i])) / sum_p *
                (static_cast<double>(p[i]) - std::log(sum_p) - static_cast<double>(q[i]) + std::log(sum_q));
  }
  log_softmax(p);
  log_softmax(q);
  std::vector<float> probabilities(p.size());
  exp_row(p, 0.0f, 1.0f, probabilities.data());
  EXPECT_NEAR(kl_divergence(p, probabilities, q), expected, 1e-6);
  EXPECT_EQ(kl_divergence(p, probabilities, p), 0.0);
  EXPECT_EQ(top_tokens(std::vector<float>{1, 9, 3, 9, 5, 2, 7}), (TopTokens{1, 3, 6, 4, 2}));
}

}  // namespace
}  // namespace smartkv
