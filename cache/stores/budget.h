// Helpers to divide a budget among competitors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

// Returns the percentile of each value among `values`, in [0, 1): the number of smaller values over the number of all.
// Equal values are ordered by index. REQUIRES: none is NaN.
std::vector<float> ranks_of(std::span<const float> values);

// Returns whole numbers between least[i] and most[i] that add up to `total`, each near ideal[i]. The numbers that fall
// shortest of their ideal are rounded up first; of equals, the one with the lower index. REQUIRES: `total` is between
// the sum of `least` and the sum of `most`.
std::vector<int64_t> apportion(std::span<const double> ideal, std::span<const int64_t> least,
                               std::span<const int64_t> most, int64_t total);

}  // namespace smartkv
