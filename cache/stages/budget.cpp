#include "cache/stages/budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace smartkv {

std::vector<float> ranks_of(std::span<const float> values) {
  std::vector<uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), uint32_t{0});
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return values[a] != values[b] ? values[a] < values[b] : a < b; });
  std::vector<float> ranks(values.size());
  for (size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<float>(i) / static_cast<float>(values.size());
  return ranks;
}

std::vector<int64_t> apportion(std::span<const double> ideal, std::span<const int64_t> least, std::span<const int64_t> most,
                               int64_t total) {
  std::vector<int64_t> shares;
  for (size_t i = 0; i < ideal.size(); ++i) {
    shares.push_back(std::clamp(static_cast<int64_t>(std::floor(ideal[i])), least[i], most[i]));
  }
  const auto missing = [&](size_t i) { return ideal[i] - static_cast<double>(shares[i]); };
  for (int64_t left = total - std::accumulate(shares.begin(), shares.end(), int64_t{0}); left != 0;) {
    const int64_t step = left > 0 ? 1 : -1;
    size_t best = shares.size();
    for (size_t i = 0; i < shares.size(); ++i) {
      if (shares[i] == (left > 0 ? most[i] : least[i])) continue;
      if (best == shares.size() || static_cast<double>(step) * (missing(i) - missing(best)) > 0) best = i;
    }
    shares.at(best) += step;
    left -= step;
  }
  return shares;
}

}  // namespace smartkv
