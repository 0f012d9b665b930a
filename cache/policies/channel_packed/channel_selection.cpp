#include "cache/policies/channel_packed/channel_selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace smartkv {

std::vector<float> query_key_worth(std::span<const float> q2, std::span<const float> k2) {
  const size_t half = q2.size() / 2;
  std::vector<float> worth(half);
  for (size_t j = 0; j < half; ++j) worth[j] = q2[j] * k2[j] + q2[j + half] * k2[j + half];
  return worth;
}

std::vector<float> magnitude_worth(std::span<const float> k2) {
  const size_t half = k2.size() / 2;
  std::vector<float> worth(half);
  for (size_t j = 0; j < half; ++j) worth[j] = std::sqrt(k2[j] + k2[j + half]);
  return worth;
}

std::vector<uint8_t> single_channel_order(std::span<const float> worth, int64_t channels) {
  std::vector<uint8_t> order(worth.size());
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::stable_sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return worth[a] > worth[b]; });
  std::sort(order.begin(), order.begin() + channels);
  std::sort(order.begin() + channels, order.end());
  return order;
}

std::vector<uint8_t> channel_order(std::span<const float> worth, int64_t channels) {
  const size_t half = worth.size();
  const auto kept = static_cast<std::ptrdiff_t>(channels / 2);
  const std::vector<uint8_t> pairs = single_channel_order(worth, kept);
  std::vector<uint8_t> order;
  const auto append = [&](std::ptrdiff_t from, std::ptrdiff_t end) {
    for (const size_t offset : {size_t{0}, half}) {
      for (auto pair = pairs.begin() + from; pair != pairs.begin() + end; ++pair) {
        order.push_back(static_cast<uint8_t>(*pair + offset));
      }
    }
  };
  append(0, kept);
  append(kept, static_cast<std::ptrdiff_t>(half));
  return order;
}

double retained(std::span<const uint8_t> before, std::span<const float> worth, int64_t channels) {
  double held = 0, best = 0;
  for (int64_t c = 0; c < channels; ++c) held += worth[before[static_cast<size_t>(c)] % worth.size()];
  std::vector<float> sorted(worth.begin(), worth.end());
  const size_t each = before.size() / worth.size(), n = static_cast<size_t>(channels) / each;
  std::partial_sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(n), sorted.end(), std::greater<>());
  for (size_t i = 0; i < n; ++i) best += static_cast<double>(each) * sorted[i];
  return best == 0 ? 1 : held / best;
}

}  // namespace smartkv
