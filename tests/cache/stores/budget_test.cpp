#include "cache/stores/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

TEST(Budget, RanksFromTheLeastOn) {
  EXPECT_EQ(ranks_of(std::vector<float>{3, -1, 3, 8}), (std::vector<float>{0.25f, 0.0f, 0.5f, 0.75f}));
  EXPECT_TRUE(ranks_of({}).empty());
}

TEST(Budget, RanksAsSortingDoes) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 1e3f);
  std::vector<float> values = {0.0f,   -0.0f,  std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max(),
                               1e-40f, -1e-40f};
  for (int i = 0; i < 3000; ++i) values.push_back(i % 3 == 0 ? std::round(normal(random) / 500) : normal(random));
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  const std::vector<float> ranks = ranks_of(values);
  for (size_t i = 0; i < order.size(); ++i)
    ASSERT_EQ(ranks[order[i]], static_cast<float>(i) / static_cast<float>(values.size())) << i;
}

TEST(Budget, RoundsUpThoseThatLackTheMost) {
  const std::vector<int64_t> none(3, 0), many(3, 100);
  EXPECT_EQ(apportion(std::vector<double>{1.5, 2.2, 0.3}, none, many, 4), (std::vector<int64_t>{2, 2, 0}));
  EXPECT_EQ(apportion(std::vector<double>{1.5, 1.5, 1.0}, none, many, 4), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(apportion(std::vector<double>{0.1, 9.9, 0.0}, std::vector<int64_t>{2, 1, 2}, many, 10),
            (std::vector<int64_t>{2, 6, 2}));
  EXPECT_EQ(apportion(std::vector<double>{5.0, 5.0, 0.0}, none, std::vector<int64_t>{3, 4, 9}, 10),
            (std::vector<int64_t>{3, 4, 3}));
}

}  // namespace
}  // namespace smartkv
