// Measures how much the storage format of the weights changes the model: its divergence from bf16 weights on a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/model/model_options.h"

namespace smartkv {

struct QualityOptions {
  ModelOptions model;          // only path and threads are used
  std::filesystem::path text;  // UTF-8; text that the model was not fitted to
  // Formats to compare with bf16.
  std::vector<WeightFormat> weights = {WeightFormat::kF32, WeightFormat::kInt8, WeightFormat::kInt4};
  int64_t context = 1024;  // tokens of a window
  int64_t windows = 4;     // spread over the text; fewer if the text is too short
};

struct QualityRow {
  std::string weights;
  int64_t weight_bytes = 0, tokens = 0;
  double perplexity = 0;
  double kl_mean = 0, kl_p99 = 0, kl_max = 0;  // KL(bf16 || format) per token, in nats
  double same_top = 0;                         // share of positions with the same most likely token as bf16
};

struct QualityReport {
  std::vector<QualityRow> rows;  // bf16 first
  nlohmann::ordered_json to_json() const;
  std::string to_table() const;
};

// Measures all formats. Throws ModelError if the text is shorter than one window, and std::runtime_error if logits are
// not finite.
QualityReport measure_quality(const QualityOptions& options, const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv
