// Feeds a long text to one sequence of each cache policy, and measures memory, speed and perplexity along the way.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/model/model_options.h"
#include "lab/evaluation/evaluation.h"

namespace smartkv {

// Bytes of the entries in a cache's view: K and V with their scales, over all layers and KV heads. Page slack, biases,
// residuals and the state of the policy do not count.
struct TierBytes {
  int64_t exact = 0, packed = 0;  // tokens in 16 or 32 bits; quantized tokens
  int64_t summaries = 0;          // entries that stand for several tokens
};
TierBytes tier_bytes(const SequenceCache& cache, const CacheShape& shape);

struct LongContextOptions {
  ModelOptions model;  // without context_length and rope_scaling, which follow from `tokens`
  std::filesystem::path text;
  std::vector<nlohmann::json> policies;  // measured one after the other
  int64_t tokens = 100000;               // tokens of the text to feed
  // Token counts at which to measure, in addition to `tokens`. Larger ones are ignored.
  std::vector<int64_t> marks = {1000, 2000, 4000, 8000, 10000, 16000, 32000, 64000, 100000};
  int64_t scored_tokens = 1024;  // last tokens before each mark that count for perplexity; at least decode_tokens count
  int64_t decode_tokens = 128;   // last tokens before each mark that are fed one by one; they include two boundaries
  // RoPE scaling for positions beyond the model's own context, one of kStretches, with the factor tokens / context. It
  // applies to every token, as in serving.
  RopeScaling rope_scaling = RopeScaling::kYarn;
};

// Measurements of a request at one mark. Its prompt ends decode_tokens before the mark, and its answer ends at the
// mark. The request runs on a separate cache; the text continues without it.
struct LongContextRow {
  nlohmann::json policy;
  int64_t tokens = 0;
  int64_t kv_bytes = 0, full_bytes = 0, resident_bytes = 0;  // resident_bytes: memory of the process
  TierBytes tiers;                                           // the entries within kv_bytes
  double tokens_kept = 0;
  // Tokens per second since the last mark, without scored tokens. 0 if there were none.
  double prefill = 0;
  double decode = 0;                   // tokens per second of the median step
  double worst_ms = 0, median_ms = 0;  // milliseconds of a step, including its commit
  std::vector<double> losses;          // losses of the scored tokens, in nats
  double perplexity = 0;
  // Change of perplexity against "full" at the same mark, in percent, and its standard error over tokens. NaN for
  // "full" itself and if "full" was not measured earlier.
  double change = 0, change_error = 0;
  std::map<std::string, double> details;
};

struct LongContextReport {
  std::string model, rope_scaling;
  int64_t own_context = 0;     // context length of the model without scaling
  double factor = 1;           // RoPE scaling factor
  int64_t resident_bytes = 0;  // resident memory of the process before any cache
  std::vector<LongContextRow> rows;

  nlohmann::ordered_json to_json() const;
  // Returns the table from row `first_row` on, to print after the rows before it.
  std::string to_table(size_t first_row = 0) const;
};

// Called after each row is added.
using OnLongContextRow = std::function<void(const LongContextReport&)>;

// Loads the model and measures all policies. Throws the exceptions of loading a model, CacheError for a bad policy, and
// EvaluationError if the text is too short or a mark too small.
LongContextReport measure_long_context(const LongContextOptions& options, const OnLongContextRow& on_row = nullptr);

// Measures all policies with a loaded model and adds rows to `report`. REQUIRES: `tokens` has more than options.tokens
// tokens.
void measure_long_context(const EvaluationModel& model, std::span<const TokenId> tokens,
                          const LongContextOptions& options, LongContextReport* report,
                          const OnLongContextRow& on_row = nullptr);

}  // namespace smartkv
