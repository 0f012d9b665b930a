#include "cache/policies/channel_packed/channel_selection.h"

#include <algorithm>
#include <cmath>
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

double retained(std::span<const uint8_t> before, std::span<const uint8_t> after, int64_t channels) {
  const auto n = static_cast<size_t>(channels);
  const std::span<const uint8_t> first = after.first(n);
  const auto found = std::count_if(before.begin(), before.begin() + channels, [&](uint8_t channel) {
    return std::find(first.begin(), first.end(), channel) != first.end();
  });
  return static_cast<double>(found) / static_cast<double>(n);
}

}  // namespace smartkv
