#include "cache/policies/mixed_precision/forecast.h"

#include <cmath>
#include <sstream>
#include <string>

#include "cache/state_io.h"

namespace smartkv {

ImportanceForecast::ImportanceForecast(const ForecastOptions& options) : options_(options) {
  buffer_.reserve(static_cast<size_t>(options.history));
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (size_t i = 0; i < kHidden * (kFeatures + 1); ++i) weights_[i] = uniform(random_) / std::sqrt(float{kFeatures});
  for (size_t i = kHidden * (kFeatures + 1); i < kWeights; ++i) weights_[i] = uniform(random_) / std::sqrt(float{kHidden});
}

float ImportanceForecast::forward(const Features& features, std::array<float, kHidden>* hidden) const {
  const float* w = weights_.data();
  const float* out = w + kHidden * (kFeatures + 1);
  // The network corrects the last importance: untrained, it already is a forecast.
  float sum = features[0] + out[kHidden];
  for (size_t h = 0; h < kHidden; ++h, w += kFeatures + 1) {
    float x = w[kFeatures];
    for (size_t i = 0; i < kFeatures; ++i) x += w[i] * features[i];
    (*hidden)[h] = std::tanh(x);
    sum += out[h] * (*hidden)[h];
  }
  return sum;
}

float ImportanceForecast::predict(const Features& features) const {
  std::array<float, kHidden> hidden;
  return forward(features, &hidden);
}

void ImportanceForecast::learn(const Features& features, float log_importance) {
  const Sample sample{features, log_importance};
  if (static_cast<int64_t>(buffer_.size()) < options_.history) {
    buffer_.reserve(static_cast<size_t>(options_.history));  // copies are made without
    buffer_.push_back(sample);
  } else {
    buffer_[static_cast<size_t>(added_ % options_.history)] = sample;
  }
  if (++added_ % options_.update_interval == 0) train();
}

void ImportanceForecast::train() {
  constexpr float kDecay1 = 0.9f, kDecay2 = 0.999f, kEpsilon = 1e-8f;
  std::array<float, kWeights> gradient{};
  const size_t output = kHidden * (kFeatures + 1);
  double loss = 0;
  for (int64_t i = 0; i < kBatch; ++i) {
    const Sample& sample = buffer_[random_() % buffer_.size()];
    std::array<float, kHidden> hidden;
    const float error = forward(sample.features, &hidden) - sample.target;
    loss += static_cast<double>(error) * error / static_cast<double>(kBatch);
    const float slope = 2 * error / static_cast<float>(kBatch);
    for (size_t h = 0; h < kHidden; ++h) {
      gradient[output + h] += slope * hidden[h];
      const float inner = slope * weights_[output + h] * (1 - hidden[h] * hidden[h]);
      float* row = gradient.data() + h * (kFeatures + 1);
      for (size_t f = 0; f < kFeatures; ++f) row[f] += inner * sample.features[f];
      row[kFeatures] += inner;
    }
    gradient[output + kHidden] += slope;
  }
  last_loss_ = loss;
  ++step_;
  const auto step = static_cast<float>(step_);
  const float correct1 = 1 - std::pow(kDecay1, step), correct2 = 1 - std::pow(kDecay2, step);
  for (size_t i = 0; i < kWeights; ++i) {
    mean_[i] = kDecay1 * mean_[i] + (1 - kDecay1) * gradient[i];
    variance_[i] = kDecay2 * variance_[i] + (1 - kDecay2) * gradient[i] * gradient[i];
    weights_[i] -= static_cast<float>(options_.lr) * (mean_[i] / correct1) / (std::sqrt(variance_[i] / correct2) + kEpsilon);
  }
}

int64_t ImportanceForecast::bytes() const {
  return static_cast<int64_t>(sizeof(*this)) + options_.history * static_cast<int64_t>(sizeof(Sample));
}

void ImportanceForecast::save(StateWriter* out) const {
  for (const auto* weights : {&weights_, &mean_, &variance_}) out->bytes(weights->data(), sizeof(*weights));
  out->value(static_cast<int64_t>(buffer_.size()));
  for (const Sample& sample : buffer_) {
    out->bytes(sample.features.data(), sizeof(sample.features));
    out->value(sample.target);
  }
  std::ostringstream state;
  state << random_;  // one number
  out->value(static_cast<uint32_t>(std::stoul(state.str())));
  out->value(added_);
  out->value(step_);
  out->value(last_loss_);
}

void ImportanceForecast::load(StateReader* in) {
  for (auto* weights : {&weights_, &mean_, &variance_}) in->bytes(weights->data(), sizeof(*weights));
  const auto n = in->value<int64_t>();
  in->expect(n >= 0 && n <= options_.history, "a history no longer than forecast_history");
  buffer_.resize(static_cast<size_t>(n));
  for (Sample& sample : buffer_) {
    in->bytes(sample.features.data(), sizeof(sample.features));
    sample.target = in->value<float>();
  }
  random_ = std::minstd_rand(in->value<uint32_t>());
  added_ = in->value<int64_t>();
  step_ = in->value<int64_t>();
  last_loss_ = in->value<double>();
  in->expect(added_ >= n && step_ >= 0, "a count of samples");
}

}  // namespace smartkv
