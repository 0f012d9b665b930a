#include "cache/policies/block_summary/least_squares.h"

#include <vector>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

TEST(LeastSquaresTest, FindsTheSolutionInsideItsBounds) {
  // A = [[1, 0], [1, 1], [0, 1]], t = A (2, 3).
  const std::vector<double> gram = {2, 1, 1, 2}, rhs = {7, 8}, low = {0, 0}, high = {10, 10};
  std::vector<double> x = {1, 1};
  bounded_least_squares(gram, rhs, low, high, x);
  EXPECT_NEAR(x[0], 2, 1e-9);
  EXPECT_NEAR(x[1], 3, 1e-9);
}

TEST(LeastSquaresTest, StaysAtABoundAndFitsTheRest) {
  const std::vector<double> gram = {2, 1, 1, 2}, rhs = {7, 8}, low = {0, 0}, high = {1, 10};
  std::vector<double> x = {1, 1};
  bounded_least_squares(gram, rhs, low, high, x);
  EXPECT_DOUBLE_EQ(x[0], 1);
  EXPECT_NEAR(x[1], 3.5, 1e-9);
}

TEST(LeastSquaresTest, AColumnOfZerosKeepsItsValue) {
  const std::vector<double> gram = {0, 0, 0, 4}, rhs = {0, 2}, low = {0, 0}, high = {9, 9};
  std::vector<double> x = {7, 1};
  bounded_least_squares(gram, rhs, low, high, x);
  EXPECT_DOUBLE_EQ(x[0], 7);
  EXPECT_NEAR(x[1], 0.5, 1e-12);
}

TEST(LeastSquaresTest, SolvesForSeveralColumns) {
  const std::vector<double> gram = {4, 2, 0, 2, 5, 1, 0, 1, 3};
  const std::vector<double> x = {1, -2, 0.5, 3, 2, -1};  // [3, 2]
  std::vector<double> rhs(6, 0.0);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      for (size_t c = 0; c < 2; ++c) rhs[i * 2 + c] += gram[i * 3 + j] * x[j * 2 + c];
    }
  }
  solve_positive(gram, 2, rhs);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(rhs[i], x[i], 1e-12);
}

}  // namespace
}  // namespace smartkv
