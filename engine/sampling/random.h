// Counter-based random numbers: a number depends on its counters only, so a seeded choice draws the same numbers
// whatever else is in the batch and however often it was rescheduled.
// Source: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), chained over the counters.
#pragma once

#include <cstdint>

namespace smartkv {

namespace detail {
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
}  // namespace detail

// Which use of randomness a number is for; uses at one position are independent.
enum class RandomStream : uint32_t { kSample = 0, kDraft = 1, kAccept = 2, kResidual = 3 };

// Uniform in [0, 1) with 53 bits. `position`: index of the output token.
constexpr double uniform(uint64_t seed, uint32_t choice, uint64_t position,
                         RandomStream stream = RandomStream::kSample) {
  uint64_t x = detail::mix64(seed);
  x = detail::mix64(x ^ ((uint64_t{static_cast<uint32_t>(stream)} << 32) | choice));
  x = detail::mix64(x ^ position);
  return static_cast<double>(x >> 11) * 0x1.0p-53;
}

}  // namespace smartkv
