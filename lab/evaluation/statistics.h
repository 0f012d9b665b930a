// Means of independent values, with their standard errors.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace smartkv {

inline double mean(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

// Returns the standard error of the mean. Returns NaN for fewer than two values.
inline double standard_error(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (values.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double middle = mean(values);
  double squares = 0;
  for (const double x : values) squares += (x - middle) * (x - middle);
  return std::sqrt(squares / (n - 1) / n);
}

}  // namespace smartkv
