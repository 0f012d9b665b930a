#include "engine/evaluation/long_context.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "engine/evaluation/evaluation.h"
#include "engine/evaluation/logit_metrics.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/system_resources.h"
#include "engine/text/tokenizer.h"

namespace smartkv {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<TokenId> text_tokens(const LongContextOptions& options, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens = read_tokens(options.text, tokenizer);
  if (static_cast<int64_t>(tokens.size()) > options.tokens) return tokens;
  throw EvaluationError(options.text.string() + ": expected more than " + std::to_string(options.tokens) + " tokens, found " +
                        std::to_string(tokens.size()));
}

class Run {
 public:
  Run(Model& model, const KvCachePolicy& policy, std::span<const TokenId> tokens, int64_t end)
      : model_(model), tokens_(tokens), cache_(policy.new_sequence(end)), logits_(static_cast<size_t>(model.config().vocab_size)) {}

  // Goes on to token `mark`, the last `decoded` of them one by one.
  LongContextRow advance_to(int64_t mark, int64_t decoded) {
    LongContextRow row;
    const int64_t first = cache_->tokens(), from = std::max(first, mark - decoded);
    const auto start = Clock::now();
    pass(from - first, 0);
    if (from > first) row.prefill = static_cast<double>(from - first) / seconds_since(start);
    std::vector<double> steps;
    double loss = 0;
    while (cache_->tokens() < mark) {
      const auto step = Clock::now();
      pass(1, 1);
      steps.push_back(seconds_since(step));
      log_softmax(logits_);
      loss -= logits_[static_cast<size_t>(tokens_[static_cast<size_t>(cache_->tokens())])];
    }
    std::sort(steps.begin(), steps.end());
    row.median_ms = 1e3 * steps[steps.size() / 2];
    row.worst_ms = 1e3 * steps.back();
    row.decode = 1e3 / row.median_ms;
    row.perplexity = std::exp(loss / static_cast<double>(steps.size()));
    const CacheStats stats = cache_->stats();
    row.tokens = mark;
    row.kv_bytes = stats.bytes;
    row.full_bytes = stats.full_bytes;
    row.tokens_kept = static_cast<double>(stats.tokens_kept);
    row.resident_bytes = resident_bytes();
    row.details = cache_->details();
    return row;
  }

 private:
  void pass(int64_t n, int64_t n_logits) {
    feed(model_, *cache_, tokens_.subspan(static_cast<size_t>(cache_->tokens()), static_cast<size_t>(n)), n_logits, logits_.data());
  }

  Model& model_;
  std::span<const TokenId> tokens_;
  std::unique_ptr<SequenceCache> cache_;
  std::vector<float> logits_;
};

}  // namespace

LongContextReport measure_long_context(const LongContextOptions& options,
                                       const std::function<void(const LongContextRow&)>& on_row) {
  ThreadPool threads(options.threads > 0 ? options.threads : available_cores());
  const std::unique_ptr<Weights> weights = Weights::open(options.model);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, options.model);
  const std::vector<TokenId> tokens = text_tokens(options, *tokenizer);
  LongContextReport report;
  report.own_context = weights->config().context_length;
  LlamaOptions llama{options.dtype, options.weights, std::max(options.tokens, report.own_context)};
  if (options.tokens > report.own_context) {
    llama.rope_scaling = options.rope_scaling;
    report.factor = static_cast<double>(options.tokens) / static_cast<double>(report.own_context);
  }
  report.rope_scaling = llama.rope_scaling;
  const std::unique_ptr<Model> model = load_llama(*weights, llama, threads);
  report.model = model->config().name;
  const CacheShape shape = llama_cache_shape(model->config(), llama);
  const PolicyContext context = policy_context(*model, shape, &threads, options.gates);
  std::vector<int64_t> marks;
  for (const int64_t mark : options.marks) {
    if (mark < options.tokens) marks.push_back(mark);
  }
  marks.push_back(options.tokens);
  for (const nlohmann::json& spec : options.policies) {
    const std::unique_ptr<KvCachePolicy> policy = make_policy(context, spec);
    Run run(*model, *policy, tokens, options.tokens);
    for (const int64_t mark : marks) {
      LongContextRow row = run.advance_to(mark, options.decode_tokens);
      row.policy = spec;
      report.rows.push_back(row);
      if (on_row) on_row(row);
    }
  }
  return report;
}

nlohmann::ordered_json LongContextReport::to_json() const {
  nlohmann::ordered_json json = {{"model", model}, {"own_context", own_context}, {"rope_scaling", rope_scaling}, {"factor", factor}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const LongContextRow& row : rows) {
    json["rows"].push_back({{"policy", row.policy}, {"tokens", row.tokens}, {"kv_bytes", row.kv_bytes},
                            {"full_bytes", row.full_bytes}, {"resident_bytes", row.resident_bytes},
                            {"tokens_kept", row.tokens_kept}, {"prefill_tokens_per_s", row.prefill},
                            {"decode_tokens_per_s", row.decode}, {"median_step_ms", row.median_ms},
                            {"worst_step_ms", row.worst_ms}, {"perplexity", row.perplexity}, {"details", row.details}});
  }
  return json;
}

std::string LongContextReport::to_table() const {
  std::string table = model + ": context of its own " + std::to_string(own_context) + " tokens; ";
  char line[200];
  std::snprintf(line, sizeof line, "RoPE scaling %s, factor %.2f\n", rope_scaling.c_str(), factor);
  table += factor > 1 ? std::string(line) : "within it, no RoPE scaling\n";
  std::snprintf(line, sizeof line, "%8s %9s %9s %8s %8s %9s %9s %9s %9s %9s\n", "tokens", "KV MB", "full MB", "of full", "kept",
                "RSS MB", "prefill/s", "decode/s", "worst ms", "ppl");
  nlohmann::json policy;
  for (const LongContextRow& row : rows) {
    if (row.policy != policy) table += row.policy.dump() + "\n" + line;
    policy = row.policy;
    char values[200];
    std::snprintf(values, sizeof values, "%8ld %9.1f %9.1f %8.4f %8.0f %9.0f %9.1f %9.1f %9.1f %9.2f\n", static_cast<long>(row.tokens),
                  static_cast<double>(row.kv_bytes) / 1e6, static_cast<double>(row.full_bytes) / 1e6,
                  static_cast<double>(row.kv_bytes) / static_cast<double>(row.full_bytes), row.tokens_kept,
                  static_cast<double>(row.resident_bytes) / 1e6, row.prefill, row.decode, row.worst_ms, row.perplexity);
    table += values;
  }
  return table;
}

}  // namespace smartkv
