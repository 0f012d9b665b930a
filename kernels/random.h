// Counter-based random numbers. A number depends on its counters only. So a choice with a seed draws the same numbers
// whatever else is in the batch, however often it was rescheduled, and on the host as on a device. Source: the
// finalizer of SplitMix64 (Steele, Lea, Flood 2014), chained over the counters.
#pragma once

#include <cstdint>

#include "kernels/rounded.h"

namespace smartkv {

namespace detail {
SMARTKV_HOST_DEVICE constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Returns the key of all numbers of a position.
constexpr uint64_t position_key(uint64_t seed, uint32_t choice, uint64_t position) {
  return mix64(mix64(mix64(seed) ^ choice) ^ position);
}
}  // namespace detail

// Returns a uniform number in [0, 1) with 53 bits. `position` is the index of the output token.
constexpr double uniform(uint64_t seed, uint32_t choice, uint64_t position) {
  return static_cast<double>(detail::position_key(seed, choice, position) >> 11) * 0x1.0p-53;
}

// Returns an exponentially distributed number with mean 1, within [0, 36.8], from the upper 53 of 64 random bits. It is
// accurate to 4 ulp and the same on every machine. Computes -log u of a uniform u in (0, 1], by the series 2 artanh s
// of log((1 + s) / (1 - s)).
SMARTKV_HOST_DEVICE inline double exponential(uint64_t random_bits) {
  using namespace rounded;
  constexpr double kLn2High = 0x1.62e42fefa0000p-1, kLn2Low = 0x1.cf79abc9e3b39p-40;  // k * kLn2High is exact.
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu;                                 // The bits of sqrt(1/2).
  const double u = static_cast<double>((random_bits >> 11) + 1) * 0x1.0p-53;
  const auto bits = __builtin_bit_cast(uint64_t, u);
  const int64_t k = static_cast<int64_t>(bits - kRootHalf) >> 52;  // u = 2^k m, m in [sqrt(1/2), sqrt(2))
  const auto m = __builtin_bit_cast(double, bits - (static_cast<uint64_t>(k) << 52));
  // z < 0.0295: the first omitted term is below 2^-56 of the sum.
  const double s = divide(m - 1, m + 1), z = multiply(s, s);
  double series = 1.0 / 19;
  for (int n = 17; n >= 1; n -= 2) series = add(multiply(series, z), 1.0 / n);
  const auto whole = static_cast<double>(-k);
  return add(multiply(whole, kLn2High), subtract(multiply(whole, kLn2Low), multiply(2 * s, series)));
}

}  // namespace smartkv
