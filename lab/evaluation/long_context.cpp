#include "lab/evaluation/long_context.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "engine/calibration/calibration.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/sampling/logit_metrics.h"
#include "engine/system_resources.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/model_fingerprint.h"
#include "kernels/indexed_rows.h"
#include "lab/evaluation/markup.h"

namespace smartkv {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::kPageTokens;

constexpr int64_t kScoredTogether = 64;  // rows of logits held at a time; few, because resident memory is measured

double elapsed_seconds(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<TokenId> text_tokens(const LongContextOptions& options, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens = read_tokens(options.text, tokenizer);
  if (static_cast<int64_t>(tokens.size()) > options.tokens) return tokens;
  throw EvaluationError(options.text.string() + ": expected more than " + std::to_string(options.tokens) +
                        " tokens, found " + std::to_string(tokens.size()));
}

std::vector<int64_t> rising_marks(const LongContextOptions& options) {
  std::vector<int64_t> marks = options.marks;
  std::sort(marks.begin(), marks.end());
  marks.erase(std::unique(marks.begin(), marks.end()), marks.end());
  std::erase_if(marks, [&](int64_t mark) { return mark >= options.tokens; });
  marks.push_back(options.tokens);
  const int64_t least = options.decode_tokens + kPageTokens;  // a page before the decoded tokens
  if (marks.front() >= least) return marks;
  throw EvaluationError("marks: expected at least " + std::to_string(least) + " tokens, found " +
                        std::to_string(marks.front()));
}

// The sequence of one policy. Its prompt grows from mark to mark.
class LongContextRun {
 public:
  LongContextRun(const EvaluationModel& model, const KvCachePolicy& policy, std::span<const TokenId> tokens,
                 const LongContextOptions& options)
      : model_(model), options_(options), tokens_(tokens), cache_(policy.new_sequence(options.tokens)) {}

  // Advances to `mark` and measures there.
  LongContextRow row_at(int64_t mark) {
    LongContextRow row;
    row.tokens = mark;
    const int64_t first = cache_->tokens(), prompt = mark - options_.decode_tokens;
    const int64_t scored = mark - std::max(options_.scored_tokens, options_.decode_tokens);
    // Resume a page before the end of the prompt: no policy looks further back than that.
    const int64_t parting = std::max(first, std::min(scored, prompt - kPageTokens));
    const auto start = Clock::now();
    feed(model_.model, *cache_, slice(first, parting), 0, nullptr);
    if (parting > first) row.prefill = static_cast<double>(parting - first) / elapsed_seconds(start);
    const std::unique_ptr<SequenceCache> answer = cache_->resume(prompt);
    if (answer == nullptr) {
      throw EvaluationError("the cache cannot be resumed for a prompt of " + std::to_string(prompt) + " tokens");
    }
    if (mark == options_.tokens) cache_.reset();
    feed(model_.model, *answer, slice(parting, std::max(parting, scored)), 0, nullptr);
    while (answer->tokens() < prompt) score(*answer, std::min(kScoredTogether, prompt - answer->tokens()), &row);
    decode(*answer, mark, &row);
    const double loss = std::accumulate(row.losses.begin(), row.losses.end(), 0.0);
    row.perplexity = std::exp(loss / static_cast<double>(row.losses.size()));
    const CacheStats stats = answer->stats();
    row.kv_bytes = stats.bytes;
    row.tiers = tier_bytes(*answer, model_.shape);
    row.full_bytes = stats.full_bytes;
    row.tokens_kept = static_cast<double>(stats.tokens_kept);
    row.resident_bytes = resident_bytes();
    row.details = answer->details();
    return row;
  }

 private:
  std::span<const TokenId> slice(int64_t first, int64_t end) const {
    return tokens_.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
  }

  void score(SequenceCache& cache, int64_t n, LongContextRow* row) {
    const int64_t first = cache.tokens();
    const auto vocab = static_cast<size_t>(model_.model.config().vocab_size);
    logits_.resize(static_cast<size_t>(n) * vocab);
    feed(model_.model, cache, slice(first, first + n), n, logits_.data());
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      const std::span<float> logits = std::span(logits_).subspan(i * vocab, vocab);
      log_softmax(logits);
      row->losses.push_back(
          -static_cast<double>(logits[static_cast<size_t>(tokens_[static_cast<size_t>(first) + i + 1])]));
    }
  }

  void decode(SequenceCache& cache, int64_t end, LongContextRow* row) {
    std::vector<double> steps;
    while (cache.tokens() < end) {
      const auto step = Clock::now();
      score(cache, 1, row);
      steps.push_back(1e3 * elapsed_seconds(step));
    }
    std::sort(steps.begin(), steps.end());
    row->median_ms = steps[steps.size() / 2];
    row->worst_ms = steps.back();
    row->decode = 1e3 / row->median_ms;
  }

  const EvaluationModel& model_;
  const LongContextOptions& options_;
  std::span<const TokenId> tokens_;
  std::unique_ptr<SequenceCache> cache_;
  std::vector<float> logits_;
};

void compare_with_full(const std::vector<LongContextRow>& rows, LongContextRow* row) {
  row->change = row->change_error = NAN;
  const auto full = std::find_if(rows.begin(), rows.end(), [&](const LongContextRow& other) {
    return other.policy == "full" && other.tokens == row->tokens && row->policy != "full";
  });
  if (full == rows.end()) return;
  const auto n = static_cast<double>(row->losses.size());
  double sum = 0, squares = 0;
  for (size_t i = 0; i < row->losses.size(); ++i) {
    const double difference = row->losses[i] - full->losses[i];
    sum += difference;
    squares += difference * difference;
  }
  const double mean = sum / n;
  row->change = 100 * std::expm1(mean);
  row->change_error = 100 * std::sqrt(std::max(0.0, squares / n - mean * mean) / n);
}

}  // namespace

TierBytes tier_bytes(const SequenceCache& cache, const CacheShape& shape) {
  using kernels::KvSegment;
  const int64_t dense = shape.bytes_per_token() / (shape.n_layers * shape.n_kv_heads);
  TierBytes bytes;
  std::vector<KvSegment> segments;
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    segments.clear();
    cache.view(layer, 0, &segments);
    for (const KvSegment& segment : segments) {
      const bool is_dense = segment.format != KvSegment::Format::kQuantized && segment.row_bits == 0;
      int64_t entry = segment.format == KvSegment::Format::kDense ? dense : segment.head_stride / kPageTokens;
      // The index of a page does not count.
      if (segment.is_indexed()) entry = kernels::row_bytes(shape.type, shape.head_dim, segment.row_bits);
      for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
        if (!segment.is_of(head)) continue;
        const float* bias = segment.bias == nullptr ? nullptr : segment.bias + head * kPageTokens;
        const int64_t summaries = bias == nullptr ? 0 : segment.tokens - std::count(bias, bias + segment.tokens, 0.0f);
        bytes.summaries += summaries * entry;
        (is_dense ? bytes.exact : bytes.packed) += (segment.tokens - summaries) * entry;
      }
    }
  }
  return bytes;
}

void measure_long_context(const EvaluationModel& model, std::span<const TokenId> tokens,
                          const LongContextOptions& options, LongContextReport* report,
                          const OnLongContextRow& on_row) {
  const std::vector<int64_t> marks = rising_marks(options);
  for (const nlohmann::json& spec : options.policies) {
    {
      const std::unique_ptr<KvCachePolicy> policy = model.make_policy(spec);
      LongContextRun run(model, *policy, tokens, options);
      for (const int64_t mark : marks) {
        LongContextRow row = run.row_at(mark);
        row.policy = spec;
        compare_with_full(report->rows, &row);
        report->rows.push_back(row);
        if (on_row) on_row(*report);
      }
    }
    malloc_trim(0);  // so that memory of this policy does not count as resident for the next one
  }
}

LongContextReport measure_long_context(const LongContextOptions& options, const OnLongContextRow& on_row) {
  ModelOptions served = options.model;
  ThreadPool threads(served.threads > 0 ? served.threads : available_cores());
  const std::unique_ptr<Weights> weights = Weights::open(served.path);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, served.path);
  const std::vector<TokenId> tokens = text_tokens(options, *tokenizer);
  LongContextReport report;
  report.own_context = weights->config().context_length;
  served.context_length = std::max(options.tokens, report.own_context);
  if (options.tokens > report.own_context) {
    served.rope_scaling.scaling = options.rope_scaling;
    report.factor = static_cast<double>(options.tokens) / static_cast<double>(report.own_context);
  }
  report.rope_scaling = name(served.rope_scaling.scaling);
  const std::unique_ptr<Model> model = load_llama(*weights, served, threads);
  report.model = model->config().name;
  const CacheShape shape = llama_cache_shape(model->config(), served);
  const PolicyContext context = policy_context(*model, shape, &threads, {model_identity(*weights), served.gates},
                                               calibrated_on_demand(*model, *weights, threads, served));
  const EvaluationModel evaluated{*model, threads, shape,
                                  [&](const nlohmann::json& spec) { return make_policy(context, spec); }};
  // Report a bad policy before measuring.
  for (const nlohmann::json& spec : options.policies) evaluated.make_policy(spec);
  malloc_trim(0);
  report.resident_bytes = resident_bytes();
  measure_long_context(evaluated, tokens, options, &report, on_row);
  return report;
}

nlohmann::ordered_json LongContextReport::to_json() const {
  nlohmann::ordered_json json = {{"model", model},
                                 {"own_context", own_context},
                                 {"rope_scaling", rope_scaling},
                                 {"factor", factor},
                                 {"resident_bytes", resident_bytes}};
  json["rows"] = nlohmann::ordered_json::array();
  for (const LongContextRow& row : rows) {
    const TierBytes& held = row.tiers;
    const nlohmann::ordered_json tiers = {
        {"exact", held.exact}, {"packed", held.packed}, {"summaries", held.summaries}};
    json["rows"].push_back({{"policy", row.policy},
                            {"tokens", row.tokens},
                            {"kv_bytes", row.kv_bytes},
                            {"kv_bytes_by_tier", tiers},
                            {"full_bytes", row.full_bytes},
                            {"resident_bytes", row.resident_bytes},
                            {"tokens_kept", row.tokens_kept},
                            {"prefill_tokens_per_s", row.prefill},
                            {"decode_tokens_per_s", row.decode},
                            {"median_step_ms", row.median_ms},
                            {"worst_step_ms", row.worst_ms},
                            {"perplexity", row.perplexity}});
    if (std::isfinite(row.change)) {
      json["rows"].back()["perplexity_change_percent"] = row.change;
      json["rows"].back()["perplexity_change_error"] = row.change_error;
    }
    json["rows"].back()["details"] = row.details;
  }
  return json;
}

namespace {

double megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

std::string table_line(const LongContextRow& row) {
  const bool compared = std::isfinite(row.change);
  const std::string prefill = row.prefill > 0 ? formatted("%.1f", row.prefill) : "-";
  const std::string change = compared ? formatted("%+.2f %% (%.2f)", row.change, row.change_error) : "-";
  return formatted("%8ld %8.1f %8.1f %8.1f %8.1f %8.1f %7.0f %8.0f %9s %8.1f %9.2f %8.2f %6.1f %8.2f %16s\n",
                   static_cast<long>(row.tokens), megabytes(row.kv_bytes), megabytes(row.tiers.exact),
                   megabytes(row.tiers.packed), megabytes(row.tiers.summaries), megabytes(row.full_bytes),
                   row.tokens_kept, megabytes(row.resident_bytes), prefill.c_str(), row.decode, row.median_ms,
                   row.worst_ms, row.worst_ms / row.median_ms, row.perplexity, change.c_str());
}

}  // namespace

std::string LongContextReport::to_table(size_t first_row) const {
  std::string table;
  if (first_row == 0) {
    table = model + ": own context length " + std::to_string(own_context) + " tokens; " +
            (factor > 1 ? formatted("RoPE scaling %s, factor %.2f", rope_scaling.c_str(), factor) : "no RoPE scaling") +
            formatted("; %.0f MB resident before any cache\n", megabytes(resident_bytes));
  }
  for (size_t i = first_row; i < rows.size(); ++i) {
    if (i == 0 || rows[i].policy != rows[i - 1].policy) {
      table += rows[i].policy.dump() + "\n" +
               formatted("%8s %8s %8s %8s %8s %8s %7s %8s %9s %8s %9s %8s %6s %8s %16s\n", "tokens", "KV MB", "exact",
                         "packed", "summed", "full MB", "kept", "RSS MB", "prefill/s", "decode/s", "median ms",
                         "worst ms", "ratio", "ppl", "against full");
    }
    table += table_line(rows[i]);
  }
  return table;
}

}  // namespace smartkv
