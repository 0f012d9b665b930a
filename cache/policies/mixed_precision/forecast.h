// The online forecast of seed a: an MLP that learns, while the sequence runs, what importance a page will have at the next
// boundary. It belongs to one sequence, so that an answer depends on its own tokens only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace smartkv {

class StateReader;
class StateWriter;

struct ForecastOptions {
  bool enabled = false;
  int64_t history = 4096;        // samples that the replay buffer holds; the oldest is overwritten
  int64_t update_interval = 32;  // new samples per training step
  double blend = 0.5;            // share of the forecast in the importance; the rest is the moving average
  double lr = 0.05;              // of Adam; NOTES.md: how it was chosen
  int64_t hidden = 16;           // units of the hidden layer
};

class ImportanceForecast {
 public:
  static constexpr size_t kFeatures = 6;
  static constexpr int64_t kBatch = 32;  // samples of a training step, drawn from the whole buffer
  // log_importance, log_delta, recency, bits_norm, head_mean, position_step: as the seed names them.
  using Features = std::array<float, kFeatures>;

  struct Sample {
    Features features;
    float target;
  };

  explicit ImportanceForecast(const ForecastOptions& options);

  float predict(const Features& features) const;  // of the natural logarithm of the importance
  // A sample whose truth is known now. Trains after every update_interval samples.
  void learn(const Features& features, float log_importance);

  void save(StateWriter* out) const;
  void load(StateReader* in);  // of the same options. Throws CacheError

  // Mean squared error of the last training step; none before the first.
  std::optional<double> last_loss() const { return step_ == 0 ? std::nullopt : std::optional(last_loss_); }
  int64_t steps() const { return step_; }
  int64_t samples() const { return static_cast<int64_t>(buffer_.size()); }
  static int64_t bytes(const ForecastOptions& options);  // of the object, all counted

 private:
  // hidden: out, the units' values; null: nobody asks.
  float forward(const Features& features, std::vector<float>* hidden) const;
  void train();

  ForecastOptions options_;
  size_t hidden_;
  // Weights of the hidden layer [hidden][kFeatures + 1], then of the output [hidden + 1]; the last of each is the bias.
  std::vector<float> weights_, mean_, variance_;  // mean, variance: Adam's moments (Kingma & Ba 2015)
  std::vector<Sample> buffer_;  // reserved at once
  std::minstd_rand random_{1};
  int64_t added_ = 0, step_ = 0;
  double last_loss_ = 0;
};

}  // namespace smartkv
