// Sampling options on the command line, as fields of an API request.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace smartkv {

// The object must outlive the parsing of `app`.
class SamplingFlags {
 public:
  SamplingFlags(CLI::App& app, int64_t max_tokens);  // `max_tokens` is the default of --max-tokens
  nlohmann::ordered_json body() const;  // returns max_tokens and the fields that were given

 private:
  int64_t max_tokens_;
  std::optional<double> temperature_, top_p_, min_p_, repetition_penalty_;
  std::optional<int64_t> top_k_, seed_;
  std::vector<std::string> stop_;
  bool ignore_eos_ = false;
};

}  // namespace smartkv
