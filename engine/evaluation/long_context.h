// A long text through one sequence of each cache policy: what it holds, how fast it goes and what it predicts, along the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

struct LongContextOptions {
  std::filesystem::path model, text;
  std::string dtype = "auto", weights = "auto";
  int threads = 0;                                          // 0: every core that this process may use
  std::map<std::string, std::filesystem::path> gates = {};  // that policies may name
  std::vector<nlohmann::json> policies;                     // one after the other
  int64_t tokens = 100000;
  std::vector<int64_t> marks = {1000, 2000, 4000, 8000, 10000, 16000, 32000, 64000, 100000};  // and the end
  int64_t decode_tokens = 128;  // up to each mark come one by one: every boundary is among the steps
  // How positions beyond the model's own context are made valid: "none", "linear", "dynamic" or "yarn", by
  // tokens / context; it applies to every token, as when serving.
  std::string rope_scaling = "yarn";
};

struct LongContextRow {
  nlohmann::json policy;
  int64_t tokens = 0;
  int64_t kv_bytes = 0, full_bytes = 0, resident_bytes = 0;  // the last: of the process
  double tokens_kept = 0;
  double prefill = 0;                   // tokens per second since the mark before, without those that came one by one
  double decode = 0;                    // tokens per second, of the median step
  double worst_ms = 0, median_ms = 0;   // of a step, its commit included
  double perplexity = 0;                // of the tokens that came one by one
  std::map<std::string, double> details;
};

struct LongContextReport {
  std::string model, rope_scaling;
  int64_t own_context = 0;  // of the model
  double factor = 1;        // of the scaling
  std::vector<LongContextRow> rows;

  nlohmann::ordered_json to_json() const;
  std::string to_table() const;
};

// Throws what loading a model throws, CacheError for a policy, EvaluationError for a text that is too short.
LongContextReport measure_long_context(const LongContextOptions& options,
                                       const std::function<void(const LongContextRow&)>& on_row = nullptr);

}  // namespace smartkv
