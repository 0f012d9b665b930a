#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace smartkv {
namespace {

std::vector<float> plain_frequencies(double theta, int64_t dim) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < dim / 2; ++i) {
    frequencies.push_back(
        static_cast<float>(1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(dim))));
  }
  return frequencies;
}

// Divides the frequency by the factor if its wavelength is long, keeps it if its wavelength is short, and interpolates
// in between.
float llama3_frequency(const RopeConfig& config, double original_context, float frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < original_context / config.high_freq_factor) return frequency;
  if (wavelength > original_context / config.low_freq_factor) return static_cast<float>(frequency / config.factor);
  const double smooth =
      (original_context / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
  return static_cast<float>((1.0 - smooth) * frequency / config.factor + smooth * frequency);
}

void scale_yarn(const RopeConfig& config, double original_context, std::vector<float>& frequencies) {
  const double dim = 2.0 * static_cast<double>(frequencies.size());
  // Returns the dimension that makes `rotations` full turns over the original context (YaRN, section 3.2).
  const auto correction = [&](double rotations) {
    return dim * std::log(original_context / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(config.theta));
  };
  double low = correction(config.beta_fast), high = correction(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (high == low) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = static_cast<float>(frequencies[i] / config.factor * ramp + frequencies[i] * (1.0 - ramp));
  }
}

void divide(std::vector<float>& frequencies, const std::vector<float>& factors) {
  for (size_t i = 0; i < std::min(frequencies.size(), factors.size()); ++i) frequencies[i] /= factors[i];
}

}  // namespace

Rope::Rope(const RopeConfig& config, int64_t head_dim, int64_t context_length)
    : config_(config),
      head_dim_(head_dim),
      rotary_dim_(config.rotary_dim > 0 ? config.rotary_dim : head_dim),
      original_context_(config.original_context > 0 ? config.original_context : context_length),
      inverse_frequencies_(plain_frequencies(config.theta, rotary_dim_)) {
  const double original = static_cast<double>(original_context_);
  switch (config.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kDynamic: break;
    case RopeScaling::kLinear:
      for (float& f : inverse_frequencies_) f = static_cast<float>(f / config.factor);
      break;
    case RopeScaling::kLlama3:
      for (float& f : inverse_frequencies_) f = llama3_frequency(config, original, f);
      break;
    case RopeScaling::kYarn: scale_yarn(config, original, inverse_frequencies_); break;
    case RopeScaling::kLongRope:
      divide(inverse_frequencies_, context_length > original_context_ ? config.long_factors : config.short_factors);
      break;
  }
  divide(inverse_frequencies_, config.freq_factors);
}

void Rope::angles(int64_t position, float* cos, float* sin) const {
  const auto fill = [&](const auto& frequency_of) {
    const auto magnitude = static_cast<float>(config_.magnitude);
    for (int64_t i = 0; i < rotary_dim_ / 2; ++i) {
      const float angle = static_cast<float>(position) * frequency_of(i);  // In f32, as the reference computes it.
      cos[i] = std::cos(angle) * magnitude;
      sin[i] = std::sin(angle) * magnitude;
    }
    std::fill(cos + rotary_dim_ / 2, cos + head_dim_ / 2, 1.0f);
    std::fill(sin + rotary_dim_ / 2, sin + head_dim_ / 2, 0.0f);
  };
  if (config_.scaling == RopeScaling::kDynamic && position >= original_context_) {
    const double length = static_cast<double>(position + 1), original = static_cast<double>(original_context_);
    const double dim = static_cast<double>(rotary_dim_);
    const double theta =
        config_.theta * std::pow(config_.factor * length / original - (config_.factor - 1.0), dim / (dim - 2.0));
    fill([&](int64_t i) { return static_cast<float>(1.0 / std::pow(theta, 2.0 * static_cast<double>(i) / dim)); });
  } else {
    fill([&](int64_t i) { return inverse_frequencies_[static_cast<size_t>(i)]; });
  }
}

}  // namespace smartkv
