// Measures how much the storage format of the weights changes the model: its divergence from bf16 weights on a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

struct QualityOptions {
  std::filesystem::path model;
  std::filesystem::path text;  // UTF-8; text that the model was not fitted to
  std::vector<std::string> weights = {"f32", "int8", "int4"};  // formats to compare with bf16
  int64_t context = 1024;      // tokens of a window
  int64_t windows = 4;         // spread over the text; fewer if the text is too short
  int threads = 0;             // 0 for every core that this process may use
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
