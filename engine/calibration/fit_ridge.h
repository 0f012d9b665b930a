// Ridge regression.
#pragma once

#include <span>
#include <vector>

namespace smartkv {

class ThreadPool;

// Returns the weights w that minimize the sum over samples of (w x - y)^2, plus a penalty of kRidge times the number of
// samples and the mean square of a feature for the square of its weight. The last feature is 1 and has no penalty.
//  - features: x, f32 [samples, features]; not empty.
//  - labels: y, [samples].
std::vector<float> fit_ridge(ThreadPool& threads, std::span<const float> features, std::span<const double> labels);

}  // namespace smartkv
