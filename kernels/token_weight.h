// From logits to the weights that tokens are drawn by. The host's Sampler (engine/sampling/sampler.h) and the device
// sampler (kernels/device_sampler.h) share this arithmetic, so that both draw the same token. No result depends on the
// order of tokens.
#pragma once

#include <cstdint>

#include "kernels/rounded.h"

namespace smartkv {

// Returns the logit of a token that was seen, under repetition, frequency and presence penalty. output_count: how often
// the output has the token. A finite logit stays below infinity, however small `repetition` is.
SMARTKV_HOST_DEVICE inline float penalised(float logit, int32_t output_count, float repetition, float frequency,
                                           float presence) {
  using namespace rounded;
  constexpr float kMost = 3.40282347e38f;  // the largest float
  const float repeated = logit > 0 ? divide(logit, repetition) : multiply(logit, repetition);
  logit = repeated > kMost && logit <= kMost ? kMost : repeated;
  if (output_count == 0) return logit;
  return subtract(logit, add(multiply(frequency, static_cast<float>(output_count)), presence));
}

// The least argument of exp_nonpositive(). Its power of two has exponent bits 0, so that the result is 0.
constexpr float kLeastExponent = -88.0f;

// Returns the argument of exp_nonpositive() for exp((logit - max) * scale). REQUIRES: logit <= max and scale > 0.
SMARTKV_HOST_DEVICE inline float weight_exponent(float logit, float max, float scale) {
  const float exponent = rounded::multiply(rounded::subtract(logit, max), scale);
  return exponent < kLeastExponent ? kLeastExponent : exponent;
}

// Returns exp(x) within 2 ulp, and exactly 0 if that is below 2^-126. Branch-free, so that compilers vectorize loops
// over it. REQUIRES: kLeastExponent <= x <= 0.
SMARTKV_HOST_DEVICE inline float exp_nonpositive(float x) {
  using namespace rounded;
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  const float shifted = add(multiply(x, kLog2e), kRound);
  const float k = shifted - kRound;
  const float f = subtract(subtract(x, multiply(k, kLn2High)), multiply(k, kLn2Low));
  float p = 1.0f / 720;
  p = add(multiply(p, f), 1.0f / 120);
  p = add(multiply(p, f), 1.0f / 24);
  p = add(multiply(p, f), 1.0f / 6);
  p = add(multiply(p, f), 0.5f);
  p = add(multiply(p, f), 1.0f);
  p = add(multiply(p, f), 1.0f);
  const int32_t exponent = __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kRound);
  return multiply(p, __builtin_bit_cast(float, (exponent + 127) << 23));
}

// Returns the weight of a token in (0, 1], or 0 on underflow. The largest logit has weight 1.
SMARTKV_HOST_DEVICE inline float token_weight(float logit, float max, float scale) {
  return exp_nonpositive(weight_exponent(logit, max, scale));
}

// Rounding may give a token up to this many times the weight of a token with a larger logit. With this factor, the
// weight of the largest logit of a set bounds all weights of the set.
constexpr float kWeightBound = 1 + 0x1p-20f;

// Returns a weight as top_p counts it, in whole parts of 2^-43 of the largest weight. Sums of fewer than 2^20 weights
// are exact in any order.
SMARTKV_HOST_DEVICE inline int64_t weight_mass(float weight) { return static_cast<int64_t>(weight * 0x1p43f); }

// Returns the least mass that is top_p of the whole, and not 0: top_p 0 keeps the first token. REQUIRES: top_p < 1.
SMARTKV_HOST_DEVICE inline int64_t top_p_mass(int64_t total, float top_p) {
  const double share = rounded::multiply(static_cast<double>(top_p), static_cast<double>(total));
  const auto whole = static_cast<int64_t>(share);
  return static_cast<double>(whole) < share || whole == 0 ? whole + 1 : whole;
}

// Returns whether a token that arrives no earlier than noise / weight can still be first. time: arrival of the first
// token so far.
SMARTKV_HOST_DEVICE inline bool may_be_first(double noise, float weight, double time) {
  constexpr double kRounding = 1 + 0x1p-50;  // Covers the rounding of the quotient and of the product.
  return noise <= rounded::multiply(time, static_cast<double>(weight)) * kRounding;
}

}  // namespace smartkv
