#include "cache/policies/mixed_precision/allocation.h"

#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

using kernels::CodeRuns;

double error_at(double s, int bits) { return bits == 0 ? 1.5 * s : s / std::pow((1 << bits) - 1, 2); }
// Returns the bits per value of a width, including the column's scale if it has codes.
double cost(int bits) { return bits == 0 ? 0 : bits + 0.25; }

TEST(Allocation, TakesTheWidthOfLeastErrorPlusPrice) {
  for (double exponent = -6; exponent < 14; exponent += 0.37) {
    const double s = std::exp2(exponent);
    // At a price of 1 per bit, the right width has the least sum of error and bits. Found here by trying all.
    constexpr std::array<int, 5> kWidths = {8, 4, 3, 2, 0};
    size_t best = 0;
    for (size_t i = 0; i < kWidths.size(); ++i) {
      if (error_at(s, kWidths[i]) + cost(kWidths[i]) < error_at(s, kWidths[best]) + cost(kWidths[best])) best = i;
    }
    EXPECT_EQ(width_index(log_sensitivity(s), 0), best) << s;
  }
}

TEST(Allocation, HigherPricesNeverWiden) {
  std::vector<LogSensitivity> quads;
  for (int i = 0; i < 16; ++i) quads.push_back(log_sensitivity(std::exp2(8.0 - i)));
  int64_t last = INT64_MAX;
  for (int32_t price = -4000; price < 4000; price += 100) {
    const CodeRuns runs = runs_at(quads, 0, price, 0);
    EXPECT_EQ(runs.n_quads(), 16);
    EXPECT_LE(runs.bytes(64), last);
    last = runs.bytes(64);
  }
  EXPECT_EQ(runs_at(quads, 0, -20000, 0), kernels::uniform_runs(64, 8));
  EXPECT_EQ(runs_at(quads, 0, 20000, 2), kernels::uniform_runs(64, 2));
  EXPECT_EQ(runs_at(quads, 0, 20000, 0), (CodeRuns{{0, 0, 0, 0}, 16}));
  EXPECT_EQ(runs_at(quads, 700, 0, 0), runs_at(quads, 0, -700, 0));
}

TEST(Allocation, NarrowerIsNarrowerAtEachQuad) {
  const CodeRuns a{{4, 4, 4, 4}}, b{{2, 10, 0, 4}};
  EXPECT_EQ(narrower(a, b), (CodeRuns{{2, 6, 4, 4}}));
  EXPECT_EQ(narrower(b, a), narrower(a, b));
  EXPECT_EQ(narrower(a, a), a);
  EXPECT_EQ(narrower(a, kernels::uniform_runs(64, 2)), kernels::uniform_runs(64, 2));
  EXPECT_EQ(narrower(a, CodeRuns{{5, 0, 0, 1}, 10}), (CodeRuns{{4, 1, 0, 1}, 10}));
}

TEST(Allocation, SensitivitySaturates) {
  EXPECT_EQ(log_sensitivity(1.0), 0);
  EXPECT_EQ(log_sensitivity(2.0), 256);
  EXPECT_LT(log_sensitivity(0.0), -20000);
}

}  // namespace
}  // namespace smartkv
