#include "engine/calibration/fit_ridge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

constexpr double kRidge = 1e-2;

double dot(const double* x, const double* y, size_t n) {
  std::array<double, 8> sums{};
  size_t i = 0;
  for (; i + sums.size() <= n; i += sums.size()) {
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += x[i + j] * y[i + j];
  }
  return std::inner_product(x + i, x + n, y + i, std::accumulate(sums.begin(), sums.end(), 0.0));
}

// Solves a x = b in place, where a is symmetric and positive definite: [n, n], of which the lower half is read.
void solve(std::vector<double>* a_of, std::vector<double>* x) {
  std::vector<double>& a = *a_of;
  std::vector<double>& b = *x;
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {  // a = l l^T
    for (size_t j = 0; j <= i; ++j) {
      const double sum = a[i * n + j] - dot(&a[i * n], &a[j * n], j);
      a[i * n + j] = i == j ? std::sqrt(sum) : sum / a[j * n + j];
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) b[i] -= a[i * n + k] * b[k];
    b[i] /= a[i * n + i];
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[k * n + i] * b[k];
    b[i] /= a[i * n + i];
  }
}

}  // namespace

std::vector<float> fit_ridge(ThreadPool& threads, std::span<const float> features, std::span<const double> labels) {
  const size_t samples = labels.size(), n = features.size() / std::max<size_t>(1, samples);
  // The features without their means, by feature: [n, samples].
  std::vector<double> mean(n), columns(n * samples);
  threads.parallel_for(static_cast<int64_t>(n), [&](int64_t i) {
    const auto f = static_cast<size_t>(i);
    for (size_t s = 0; s < samples; ++s) mean[f] += static_cast<double>(features[s * n + f]);
    mean[f] /= static_cast<double>(samples);
    for (size_t s = 0; s < samples; ++s) {
      columns[f * samples + s] = static_cast<double>(features[s * n + f]) - mean[f];
    }
  });
  double of_labels = 0;
  for (const double y : labels) of_labels += y / static_cast<double>(samples);
  const size_t m = n - 1;  // without the constant
  std::vector<double> gram(m * m), weights(m);
  threads.parallel_for(static_cast<int64_t>(m), [&](int64_t row) {
    const auto i = static_cast<size_t>(row);
    const double* const x = columns.data() + i * samples;
    for (size_t j = 0; j <= i; ++j) {
      gram[i * m + j] = dot(x, columns.data() + j * samples, samples);
    }
    for (size_t s = 0; s < samples; ++s) weights[i] += x[s] * (labels[s] - of_labels);
    gram[i * m + i] += kRidge * gram[i * m + i] + 1e-12;
  });
  solve(&gram, &weights);
  std::vector<float> result(weights.begin(), weights.end());
  double constant = of_labels;
  for (size_t i = 0; i < m; ++i) constant -= weights[i] * mean[i];
  result.push_back(static_cast<float>(constant));
  return result;
}

}  // namespace smartkv
