#include "cache/policies/block_summary/least_squares.h"

#include <algorithm>
#include <cmath>

namespace smartkv {

void bounded_least_squares(std::span<const double> gram, std::span<const double> rhs, std::span<const double> low,
                           std::span<const double> high, std::span<double> x) {
  const size_t n = rhs.size();
  for (int sweep = 0; sweep < kLeastSquaresSweeps; ++sweep) {
    for (size_t i = 0; i < n; ++i) {
      const double* row = gram.data() + i * n;
      if (!(row[i] > 0)) continue;
      double gradient = -rhs[i];
      for (size_t j = 0; j < n; ++j) gradient += row[j] * x[j];
      x[i] = std::clamp(x[i] - gradient / row[i], low[i], high[i]);
    }
  }
}

void solve_positive(std::span<const double> gram, int64_t columns, std::span<double> rhs) {
  const auto n = static_cast<size_t>(static_cast<int64_t>(rhs.size()) / columns), width = static_cast<size_t>(columns);
  std::vector<double> lower(n * n, 0.0);  // gram = L L^T
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = gram[i * n + j];
      for (size_t k = 0; k < j; ++k) sum -= lower[i * n + k] * lower[j * n + k];
      lower[i * n + j] = i == j ? std::sqrt(sum) : sum / lower[j * n + j];
    }
  }
  const auto eliminate = [&](size_t i, size_t j, double factor) {  // row i -= factor * row j
    for (size_t c = 0; c < width; ++c) rhs[i * width + c] -= factor * rhs[j * width + c];
  };
  const auto divide = [&](size_t i) {
    for (size_t c = 0; c < width; ++c) rhs[i * width + c] /= lower[i * n + i];
  };
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) eliminate(i, j, lower[i * n + j]);
    divide(i);
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t j = i + 1; j < n; ++j) eliminate(i, j, lower[j * n + i]);
    divide(i);
  }
}

}  // namespace smartkv
