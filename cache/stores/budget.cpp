#include "cache/stores/budget.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

namespace smartkv {
namespace {

struct Ranked {
  uint32_t key, index;
};

// Returns a key that compares as the number does. REQUIRES: the number is not NaN.
uint32_t key_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);  // Turns -0 into 0.
  constexpr uint32_t kSign = uint32_t{1} << 31;
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

}  // namespace

// A radix sort, because every boundary of a sequence ranks all tokens that it keeps.
std::vector<float> ranks_of(std::span<const float> values) {
  constexpr uint32_t kBits = 11, kDigits = uint32_t{1} << kBits;
  std::vector<Ranked> order(values.size()), sorted(values.size());
  for (size_t i = 0; i < values.size(); ++i) order[i] = {key_of(values[i]), static_cast<uint32_t>(i)};
  for (uint32_t shift = 0; shift < 32; shift += kBits) {
    std::array<uint32_t, kDigits> place{};
    for (const Ranked& of : order) ++place[(of.key >> shift) % kDigits];
    std::exclusive_scan(place.begin(), place.end(), place.begin(), uint32_t{0});
    for (const Ranked& of : order) sorted[place[(of.key >> shift) % kDigits]++] = of;
    order.swap(sorted);
  }
  std::vector<float> ranks(values.size());
  for (size_t i = 0; i < order.size(); ++i)
    ranks[order[i].index] = static_cast<float>(i) / static_cast<float>(values.size());
  return ranks;
}

std::vector<int64_t> apportion(std::span<const double> ideal, std::span<const int64_t> least,
                               std::span<const int64_t> most, int64_t total) {
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
