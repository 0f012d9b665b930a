#include "kernels/experts.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace smartkv::kernels {
namespace {

struct Chosen {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Chosen choose(const std::vector<float>& logits, int64_t k, bool normalize) {
  Chosen chosen{std::vector<int32_t>(static_cast<size_t>(k)), std::vector<float>(static_cast<size_t>(k))};
  choose_experts(logits.data(), static_cast<int64_t>(logits.size()), k, normalize, chosen.experts.data(),
                 chosen.weights.data());
  return chosen;
}

TEST(ChooseExperts, TakesTheLargestInOrder) {
  const Chosen chosen = choose({std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)}, 3, false);
  EXPECT_EQ(chosen.experts, (std::vector<int32_t>{1, 3, 2}));
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(chosen.weights[i], static_cast<float>(4 - i) / 10.0f, 1e-6f);
}

TEST(ChooseExperts, NormalizedWeightsAddUpToOne) {
  const Chosen chosen = choose({std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)}, 2, true);
  EXPECT_EQ(chosen.experts, (std::vector<int32_t>{1, 3}));
  EXPECT_NEAR(chosen.weights[0], 4.0f / 7.0f, 1e-6f);
  EXPECT_NEAR(chosen.weights[1], 3.0f / 7.0f, 1e-6f);
}

TEST(ChooseExperts, EqualOnesComeInTheOrderOfTheirNumbers) {
  EXPECT_EQ(choose({1, 2, 2, 1, 2}, 4, false).experts, (std::vector<int32_t>{1, 2, 4, 0}));
  EXPECT_EQ(choose({0, 0, 0}, 3, true).experts, (std::vector<int32_t>{0, 1, 2}));
}

TEST(ChooseExperts, LargeLogitsDoNotOverflow) {
  const Chosen chosen = choose({-1000.0f, 1000.0f, 999.0f}, 2, false);
  EXPECT_EQ(chosen.experts, (std::vector<int32_t>{1, 2}));
  EXPECT_NEAR(chosen.weights[0], 1.0f / (1.0f + std::exp(-1.0f)), 1e-6f);
}

}  // namespace
}  // namespace smartkv::kernels
