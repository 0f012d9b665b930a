// What a storage format of the weights does to the answer: divergence from bf16 weights on a text.
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
  std::filesystem::path text;  // UTF-8; the model must not have been fitted to it
  std::vector<std::string> weights = {"f32", "int8", "int4"};
  int64_t context = 1024;      // tokens of a window
  int64_t windows = 4;
  int threads = 0;
};

struct QualityRow {
  std::string weights;
  int64_t weight_bytes = 0, tokens = 0;
  double perplexity = 0;
  double kl_mean = 0, kl_p99 = 0, kl_max = 0;  // nats, KL(bf16 || format) per token
  double same_top = 0;                         // share of tokens whose most likely token is bf16's
};

struct QualityReport {
  std::vector<QualityRow> rows;  // bf16 first
  nlohmann::ordered_json to_json() const;
  std::string to_table() const;
};

// Throws ModelError when the text is too short, or std::runtime_error on a NaN.
QualityReport measure_quality(const QualityOptions& options, const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv
