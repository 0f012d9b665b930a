// How a budget is shared by those that compete for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

// Places of `values`, none of them NaN, the least first, of equals the first, in [0, 1).
std::vector<float> ranks_of(std::span<const float> values);

// Whole numbers between least[i] and most[i] that add up to `total`, each near ideal[i]: those that lack the most are
// rounded up first, of equals the first. The sums of least and most must admit the total.
std::vector<int64_t> apportion(std::span<const double> ideal, std::span<const int64_t> least, std::span<const int64_t> most,
                               int64_t total);

}  // namespace smartkv
