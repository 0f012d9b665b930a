#include "cache/importance_map.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

TEST(ImportanceMap, WeighsEachFeature) {
  const std::vector<float> k = {1, 2, 3, 4}, v = {5, 6, 7, 8};
  ImportanceMap map{std::vector<float>(static_cast<size_t>(ImportanceMap::n_features(4)))};
  ASSERT_EQ(map.weights.size(), 12U);
  map.weights = {1, 0, 0, 0, 0, 0, 0, 10, 100, 0, 1000, 10000};
  const float energy = 1 * 1 + 3 * 3, norm = 25 + 36 + 49 + 64;
  EXPECT_FLOAT_EQ(map.importance(k.data(), v.data(), 4), 1 + 10 * 8 + 100 * energy + 1000 * std::log(norm) + 10000);
}

TEST(ImportanceMap, AlwaysGivesANumber) {
  const std::vector<float> zero(4), bad(4, std::numeric_limits<float>::quiet_NaN());
  ImportanceMap map{std::vector<float>(static_cast<size_t>(ImportanceMap::n_features(4)), 1.0f)};
  EXPECT_TRUE(std::isfinite(map.importance(zero.data(), zero.data(), 4)));
  EXPECT_EQ(map.importance(bad.data(), zero.data(), 4), std::numeric_limits<float>::lowest());
}

}  // namespace
}  // namespace smartkv
