// A long text through one sequence of each cache policy: what it holds, how fast it goes and what it predicts, along the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/evaluation/evaluation.h"

namespace smartkv {

// Bytes of the entries that a view shows, K and V with scales, over all layers and KV heads. What a cache holds beside them
// is page slack, biases, residuals and its policy's state.
struct TierBytes {
  int64_t exact = 0, packed = 0;  // tokens in 16 or 32 bits, and in codes
  int64_t summaries = 0;          // entries that stand for several tokens
};
TierBytes tier_bytes(const SequenceCache& cache, const CacheShape& shape);

struct LongContextOptions {
  std::filesystem::path model, text;
  std::string dtype = "auto", weights = "auto";
  int threads = 0;                                          // 0: every core that this process may use
  std::map<std::string, std::filesystem::path> gates = {};  // that policies may name
  std::vector<nlohmann::json> policies;                     // one after the other
  int64_t tokens = 100000;
  // Where to measure, besides the end; those beyond it are left out.
  std::vector<int64_t> marks = {1000, 2000, 4000, 8000, 10000, 16000, 32000, 64000, 100000};
  int64_t scored_tokens = 1024;  // up to each mark: those that perplexity is of, at least decode_tokens
  int64_t decode_tokens = 128;   // up to each mark come one by one: two boundaries are among the steps
  // How positions beyond the model's own context are made valid: "none", "linear", "dynamic" or "yarn", by
  // tokens / context; it applies to every token, as when serving.
  std::string rope_scaling = "yarn";
};

// What a request has seen whose prompt ends decode_tokens before the mark, after that many tokens of an answer. The text
// goes on without it.
struct LongContextRow {
  nlohmann::json policy;
  int64_t tokens = 0;
  int64_t kv_bytes = 0, full_bytes = 0, resident_bytes = 0;  // the last: of the process
  TierBytes tiers;                                           // of kv_bytes
  double tokens_kept = 0;
  double prefill = 0;                  // tokens per second since the mark before, without those scored; 0: there were none
  double decode = 0;                   // tokens per second, of the median step
  double worst_ms = 0, median_ms = 0;  // of a step, its commit included
  std::vector<double> losses;          // of the scored tokens, nats
  double perplexity = 0;
  // Against "full" at the same mark, in percent, and the standard error over tokens; NaN where it did not run before.
  double change = 0, change_error = 0;
  std::map<std::string, double> details;
};

struct LongContextReport {
  std::string model, rope_scaling;
  int64_t own_context = 0;         // of the model
  double factor = 1;               // of the scaling
  int64_t resident_bytes = 0;      // of the process before any cache
  std::vector<LongContextRow> rows;

  nlohmann::ordered_json to_json() const;
  std::string to_table(size_t first_row = 0) const;  // from that row on, to be printed after what is before it
};

// Called after each row that was added.
using OnLongContextRow = std::function<void(const LongContextReport&)>;

// Throws what loading a model throws, CacheError for a policy, EvaluationError for a text that is too short and marks that
// are no lengths.
LongContextReport measure_long_context(const LongContextOptions& options, const OnLongContextRow& on_row = nullptr);

// The same with a model that is there and a text of more than options.tokens; adds rows to `report`.
void measure_long_context(const EvaluationModel& model, std::span<const TokenId> tokens, const LongContextOptions& options,
                          LongContextReport* report, const OnLongContextRow& on_row = nullptr);

}  // namespace smartkv
