// The online forecast of seed a: an MLP that learns, while the sequence runs, which importance a page will have at the
// next boundary. It belongs to one sequence, so an answer depends only on its own tokens.
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
  // Samples that the replay buffer holds. A new one overwrites the oldest.
  int64_t history = 4096;
  int64_t update_interval = 32;  // New samples per training step.
  // Share of the forecast in the importance. The rest is the moving average.
  double blend = 0.5;
  double lr = 0.05;     // Learning rate of Adam; NOTES.md says how it was chosen.
  int64_t hidden = 16;  // Units of the hidden layer.
};

class ImportanceForecast {
 public:
  static constexpr size_t kFeatures = 6;
  static constexpr int64_t kBatch = 32;  // Samples of a training step, drawn from the whole buffer.
  // log_importance, log_delta, recency, bits_norm, head_mean and position_step, named as in the seed.
  using Features = std::array<float, kFeatures>;

  struct Sample {
    Features features;
    float target;
  };

  explicit ImportanceForecast(const ForecastOptions& options);

  // Predicts the natural logarithm of the importance.
  float predict(const Features& features) const;
  // Adds a sample whose outcome is known. Trains after every update_interval samples.
  void learn(const Features& features, float log_importance);

  void save(StateWriter* out) const;
  // Reads what a forecast with the same options saved. Throws CacheError.
  void load(StateReader* in);

  // Mean squared error of the last training step. Nullopt before the first.
  std::optional<double> last_loss() const { return step_ == 0 ? std::nullopt : std::optional(last_loss_); }
  int64_t steps() const { return step_; }
  int64_t samples() const { return static_cast<int64_t>(buffer_.size()); }
  // Bytes of the object, with everything that it owns.
  static int64_t bytes(const ForecastOptions& options);

 private:
  // Returns the prediction. If `hidden` is not null, stores the values of the hidden units there.
  float forward(const Features& features, std::vector<float>* hidden) const;
  void train();

  ForecastOptions options_;
  size_t hidden_;
  // Weights of the hidden layer, [hidden][kFeatures + 1], then of the output, [hidden + 1]. The last of each is the
  // bias. mean_ and variance_ are Adam's moments (Kingma & Ba 2015).
  std::vector<float> weights_, mean_, variance_;
  std::vector<Sample> buffer_;  // Reserved once.
  std::minstd_rand random_{1};
  int64_t added_ = 0, step_ = 0;
  double last_loss_ = 0;
};

}  // namespace smartkv
