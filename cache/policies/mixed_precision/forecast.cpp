#include "cache/policies/mixed_precision/forecast.h"

#include <cmath>
#include <sstream>
#include <string>

#include "cache/state_io.h"

namespace smartkv {

namespace {

size_t n_weights(const ForecastOptions& options) {
  return static_cast<size_t>(options.hidden) * (ImportanceForecast::kFeatures + 2) + 1;
}

}  // namespace

ImportanceForecast::ImportanceForecast(const ForecastOptions& options)
    : options_(options),
      hidden_(static_cast<size_t>(options.hidden)),
      weights_(n_weights(options)),
      mean_(weights_.size()),
      variance_(weights_.size()) {
  buffer_.reserve(static_cast<size_t>(options.history));
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const size_t output = hidden_ * (kFeatures + 1);
  for (size_t i = 0; i < weights_.size(); ++i) {
    weights_[i] = uniform(random_) / std::sqrt(static_cast<float>(i < output ? kFeatures : hidden_));
  }
}

float ImportanceForecast::forward(const Features& features, std::vector<float>* hidden) const {
  const float* w = weights_.data();
  const float* out = w + hidden_ * (kFeatures + 1);
  // The network corrects the last importance, so it gives a forecast even untrained.
  float sum = features[0] + out[hidden_];
  for (size_t h = 0; h < hidden_; ++h, w += kFeatures + 1) {
    float x = w[kFeatures];
    for (size_t i = 0; i < kFeatures; ++i) x += w[i] * features[i];
    const float y = std::tanh(x);
    if (hidden != nullptr) (*hidden)[h] = y;
    sum += out[h] * y;
  }
  return sum;
}

float ImportanceForecast::predict(const Features& features) const { return forward(features, nullptr); }

void ImportanceForecast::learn(const Features& features, float log_importance) {
  const Sample sample{features, log_importance};
  if (static_cast<int64_t>(buffer_.size()) < options_.history) {
    buffer_.reserve(static_cast<size_t>(options_.history));  // A copy has lost its reservation.
    buffer_.push_back(sample);
  } else {
    buffer_[static_cast<size_t>(added_ % options_.history)] = sample;
  }
  if (++added_ % options_.update_interval == 0) train();
}

void ImportanceForecast::train() {
  constexpr float kDecay1 = 0.9f, kDecay2 = 0.999f, kEpsilon = 1e-8f;
  std::vector<float> gradient(weights_.size()), hidden(hidden_);
  const size_t output = hidden_ * (kFeatures + 1);
  double loss = 0;
  for (int64_t i = 0; i < kBatch; ++i) {
    const Sample& sample = buffer_[random_() % buffer_.size()];
    const float error = forward(sample.features, &hidden) - sample.target;
    loss += static_cast<double>(error) * error / static_cast<double>(kBatch);
    const float slope = 2 * error / static_cast<float>(kBatch);
    for (size_t h = 0; h < hidden_; ++h) {
      gradient[output + h] += slope * hidden[h];
      const float inner = slope * weights_[output + h] * (1 - hidden[h] * hidden[h]);
      float* row = gradient.data() + h * (kFeatures + 1);
      for (size_t f = 0; f < kFeatures; ++f) row[f] += inner * sample.features[f];
      row[kFeatures] += inner;
    }
    gradient[output + hidden_] += slope;
  }
  last_loss_ = loss;
  ++step_;
  const auto step = static_cast<float>(step_);
  const float correct1 = 1 - std::pow(kDecay1, step), correct2 = 1 - std::pow(kDecay2, step);
  for (size_t i = 0; i < weights_.size(); ++i) {
    mean_[i] = kDecay1 * mean_[i] + (1 - kDecay1) * gradient[i];
    variance_[i] = kDecay2 * variance_[i] + (1 - kDecay2) * gradient[i] * gradient[i];
    weights_[i] -=
        static_cast<float>(options_.lr) * (mean_[i] / correct1) / (std::sqrt(variance_[i] / correct2) + kEpsilon);
  }
}

int64_t ImportanceForecast::bytes(const ForecastOptions& options) {
  return static_cast<int64_t>(sizeof(ImportanceForecast) + 3 * n_weights(options) * sizeof(float)) +
         options.history * static_cast<int64_t>(sizeof(Sample));
}

void ImportanceForecast::save(StateWriter* out) const {
  for (const auto* weights : {&weights_, &mean_, &variance_})
    out->bytes(weights->data(), weights->size() * sizeof(float));
  out->value(static_cast<int64_t>(buffer_.size()));
  for (const Sample& sample : buffer_) {
    out->bytes(sample.features.data(), sizeof(sample.features));
    out->value(sample.target);
  }
  std::ostringstream state;
  state << random_;  // A single number.
  out->value(static_cast<uint32_t>(std::stoul(state.str())));
  out->fields(added_, step_, last_loss_);
}

void ImportanceForecast::load(StateReader* in) {
  for (auto* weights : {&weights_, &mean_, &variance_}) in->bytes(weights->data(), weights->size() * sizeof(float));
  const auto n = in->value<int64_t>();
  in->expect(n >= 0 && n <= options_.history, "a history no longer than forecast_history");
  buffer_.resize(static_cast<size_t>(n));
  for (Sample& sample : buffer_) {
    in->bytes(sample.features.data(), sizeof(sample.features));
    sample.target = in->value<float>();
  }
  random_ = std::minstd_rand(in->value<uint32_t>());
  in->fields(added_, step_, last_loss_);
  in->expect(added_ >= n && step_ >= 0, "a count of samples");
}

}  // namespace smartkv
