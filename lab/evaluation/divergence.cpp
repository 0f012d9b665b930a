#include "lab/evaluation/divergence.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "engine/sampling/logit_metrics.h"
#include "engine/sampling/row_scan.h"
#include "lab/evaluation/statistics.h"

namespace smartkv {
namespace {

constexpr int64_t kDivergenceChunk = 64;  // rows of logits held at a time

struct TokenScore {
  double loss = 0, kl = 0;  // in nats
  bool same_top = false;
  double top5 = 0;  // share of the reference's five most likely tokens that are among the policy's
};

struct DivergenceCandidate {
  const PolicySpec* spec = nullptr;
  std::unique_ptr<KvCachePolicy> policy;
  std::unique_ptr<SequenceCache> cache;
  std::vector<TokenScore> scores;  // scores of the counted tokens, window after window
  double bytes = 0, tokens = 0;    // summed over the counted chunks
  // Values at the end of a window, summed over windows.
  double end_bytes = 0, end_policy_bytes = 0, end_full_bytes = 0, end_kept = 0, end_tokens = 0;
  std::map<std::string, double> details;  // the cache's details(), summed over windows
  double seconds = 0;
};

class Divergence {
 public:
  Divergence(const EvaluationModel& model, std::span<const PolicySpec> specs, std::span<const TokenId> tokens,
             const DivergenceOptions& options)
      : model_(model), tokens_(tokens), options_(options), vocab_(model.model.config().vocab_size) {
    for (const PolicySpec& spec : specs) {
      DivergenceCandidate& candidate = candidates_.emplace_back();
      candidate.spec = &spec;
      candidate.policy = model.make_policy(spec.for_context(options.context));
    }
    for (std::vector<float>* buffer : {&reference_, &probabilities_, &logits_})
      buffer->resize(static_cast<size_t>(kDivergenceChunk * vocab_));
    reference_top_.resize(kDivergenceChunk);
    chunk_scores_.resize(kDivergenceChunk);
  }

  void run_window(int64_t window, int64_t start, const Progress& progress) {
    for (DivergenceCandidate& candidate : candidates_)
      candidate.cache = candidate.policy->new_sequence(options_.prompt_tokens);
    int64_t n = 0;
    for (int64_t at = 0; at < options_.context; at += n) {
      // Tokens that are not counted need no logits.
      const bool counted = at >= options_.from;
      n = std::min(counted ? kDivergenceChunk : kPassTokens, (counted ? options_.context : options_.from) - at);
      for (DivergenceCandidate& candidate : candidates_) {
        if (counted) {
          run_chunk(candidate, window, start, at, n);
        } else {
          feed_uncounted(candidate, start + at, n);
        }
      }
      if (progress) {
        const double done = static_cast<double>(at + n) / static_cast<double>(options_.context);
        progress((static_cast<double>(window) + done) / static_cast<double>(options_.windows));
      }
    }
    for (DivergenceCandidate& candidate : candidates_) end_window(candidate);
  }

  std::vector<nlohmann::ordered_json> rows() const {
    std::vector<nlohmann::ordered_json> rows;
    for (const DivergenceCandidate& candidate : candidates_) rows.push_back(row(candidate));
    return rows;
  }

 private:
  std::span<float> row_of(std::vector<float>& buffer, int64_t i) const {
    return std::span(buffer).subspan(static_cast<size_t>(i * vocab_), static_cast<size_t>(vocab_));
  }

  void feed_uncounted(DivergenceCandidate& candidate, int64_t first, int64_t n) {
    const auto begin = std::chrono::steady_clock::now();
    feed(model_.model, *candidate.cache, tokens_.subspan(static_cast<size_t>(first), static_cast<size_t>(n)), 0,
         nullptr);
    candidate.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // REQUIRES: the tokens are counted.
  void run_chunk(DivergenceCandidate& candidate, int64_t window, int64_t start, int64_t at, int64_t n) {
    const bool is_reference = &candidate == candidates_.data();
    std::vector<float>& logits = is_reference ? reference_ : logits_;
    const auto begin = std::chrono::steady_clock::now();
    feed(model_.model, *candidate.cache, tokens_.subspan(static_cast<size_t>(start + at), static_cast<size_t>(n)), n,
         logits.data());
    candidate.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    model_.threads.parallel_for(
        n, [&](int64_t i) { score(logits, is_reference, i, tokens_[static_cast<size_t>(start + at + i + 1)]); });
    for (int64_t i = 0; i < n; ++i) {
      const TokenScore& token = chunk_scores_[static_cast<size_t>(i)];
      if (!std::isfinite(token.loss) || !std::isfinite(token.kl)) {
        throw EvaluationError("policy \"" + candidate.spec->label + "\", window " + std::to_string(window) +
                              ", token " + std::to_string(at + i) + ": expected finite logits, found NaN or infinity");
      }
      candidate.scores.push_back(token);
    }
    candidate.bytes += static_cast<double>(candidate.cache->stats().policy_bytes());
    candidate.tokens += static_cast<double>(at + n);
  }

  // Scores row i of a chunk. Called from several threads, so bad logits become a NaN instead of an exception.
  void score(std::vector<float>& logits, bool is_reference, int64_t i, TokenId next) {
    TokenScore& score = chunk_scores_[static_cast<size_t>(i)];
    const std::span<float> row = row_of(logits, i), reference = row_of(reference_, i),
                           probabilities = row_of(probabilities_, i);
    TopTokens& reference_top = reference_top_[static_cast<size_t>(i)];
    try {
      log_softmax(row);
    } catch (const SamplingError&) {
      score.loss = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    if (is_reference) {
      exp_row(row, 0.0f, 1.0f, probabilities.data());
      reference_top = top_tokens(row);
    }
    const TopTokens top = is_reference ? reference_top : top_tokens(row);
    score.loss = -static_cast<double>(row[static_cast<size_t>(next)]);
    score.kl = kl_divergence(reference, probabilities, row);
    score.same_top = top[0] == reference_top[0];
    const auto shared = std::count_if(top.begin(), top.end(), [&](int64_t token) {
      return std::find(reference_top.begin(), reference_top.end(), token) != reference_top.end();
    });
    score.top5 = static_cast<double>(shared) / static_cast<double>(top.size());
  }

  void end_window(DivergenceCandidate& candidate) const {
    const CacheStats stats = candidate.cache->stats();
    candidate.end_bytes += static_cast<double>(stats.bytes);
    candidate.end_policy_bytes += static_cast<double>(stats.policy_bytes());
    candidate.end_full_bytes += static_cast<double>(stats.full_bytes);
    candidate.end_kept += static_cast<double>(stats.tokens_kept);
    candidate.end_tokens += static_cast<double>(stats.tokens);
    for (const auto& [name, value] : candidate.cache->details()) candidate.details[name] += value;
    candidate.cache.reset();
  }

  // Returns the standard error of `mean`, the mean of value(token) over all counted tokens, by blocks of neighbouring
  // tokens. Returns NaN if there is only one block.
  template <typename Value>
  double block_error(double mean, const Value& value) const {
    const int64_t counted = options_.context - options_.from;
    double squares = 0;
    int64_t blocks = 0;
    for (int64_t window = 0; window < options_.windows; ++window) {
      for (int64_t first = 0; first < counted; first += options_.block, ++blocks) {
        const int64_t n = std::min(options_.block, counted - first);
        double deviation = 0;
        for (int64_t i = window * counted + first; i < window * counted + first + n; ++i)
          deviation += value(static_cast<size_t>(i)) - mean;
        squares += deviation * deviation;
      }
    }
    if (blocks < 2) return std::numeric_limits<double>::quiet_NaN();
    const auto n_blocks = static_cast<double>(blocks), tokens = static_cast<double>(counted * options_.windows);
    return std::sqrt(squares * n_blocks / (n_blocks - 1)) / tokens;
  }

  nlohmann::ordered_json row(const DivergenceCandidate& candidate) const {
    const auto n = static_cast<double>(candidate.scores.size());
    double loss = 0, reference_loss = 0, kl = 0, same_top = 0, top5 = 0;
    std::vector<double> kls;
    for (size_t i = 0; i < candidate.scores.size(); ++i) {
      const TokenScore& token = candidate.scores[i];
      loss += token.loss / n;
      reference_loss += candidates_[0].scores[i].loss / n;
      kl += token.kl / n;
      same_top += token.same_top ? 1 / n : 0;
      top5 += token.top5 / n;
      kls.push_back(token.kl);
    }
    std::vector<double> window_kls;  // means over the tokens of a window
    for (auto of_window = kls.begin(); of_window != kls.end(); of_window += options_.context - options_.from) {
      window_kls.push_back(mean({of_window, static_cast<size_t>(options_.context - options_.from)}));
    }
    const double kl_error = block_error(kl, [&](size_t token) { return kls[token]; });
    const double change_error = block_error(loss - reference_loss, [&](size_t token) {
      return candidate.scores[token].loss - candidates_[0].scores[token].loss;
    });
    const double same_top_error =
        block_error(same_top, [&](size_t token) { return candidate.scores[token].same_top ? 1.0 : 0.0; });
    std::sort(kls.begin(), kls.end());
    const double change = std::exp(loss - reference_loss);
    const double values =
        static_cast<double>(2 * model_.shape.n_layers * model_.shape.n_kv_heads * model_.shape.head_dim);
    const auto windows = static_cast<double>(options_.windows);
    nlohmann::ordered_json row = {{"policy", candidate.spec->label},
                                  {"parameters", candidate.spec->for_context(options_.context)},
                                  {"counted_tokens", candidate.scores.size()},
                                  {"bytes_per_token", candidate.end_bytes / candidate.end_tokens},
                                  {"bits_per_value", 8 * candidate.end_policy_bytes / (candidate.end_tokens * values)},
                                  {"bits_per_value_mean", 8 * candidate.bytes / (candidate.tokens * values)},
                                  {"ratio", candidate.end_bytes / candidate.end_full_bytes},
                                  {"tokens_kept", candidate.end_kept / windows},
                                  {"perplexity", std::exp(loss)},
                                  {"change_percent", 100 * (change - 1)},
                                  {"change_error", 100 * change * change_error},
                                  {"kl_mean", kl},
                                  {"kl_error", kl_error},
                                  {"kl_windows", window_kls},
                                  {"kl_worst_window", *std::ranges::max_element(window_kls)},
                                  {"kl_p99", kls[kls.size() * 99 / 100]},
                                  {"kl_max", kls.back()},
                                  {"same_top_percent", 100 * same_top},
                                  {"same_top_error", 100 * same_top_error},
                                  {"same_top5_percent", 100 * top5},
                                  {"seconds", candidate.seconds}};
    for (const auto& [name, value] : candidate.details) row["details"][name] = value / windows;
    return row;
  }

  const EvaluationModel& model_;
  std::span<const TokenId> tokens_;
  const DivergenceOptions& options_;
  int64_t vocab_;
  std::vector<DivergenceCandidate> candidates_;
  // f32 [kDivergenceChunk, vocab] of a chunk. reference_ and logits_ hold logits, then log probabilities once scored.
  // probabilities_ is exp(reference_).
  std::vector<float> reference_, probabilities_, logits_;
  std::vector<TopTokens> reference_top_;
  std::vector<TokenScore> chunk_scores_;
};

}  // namespace

EvaluationReport measure_divergence(const EvaluationModel& model, std::span<const PolicySpec> policies,
                                    std::span<const TokenId> tokens, const DivergenceOptions& options,
                                    const Progress& progress) {
  if (options.from >= options.context) {
    throw EvaluationError("from: expected a token below the context of " + std::to_string(options.context) +
                          " tokens, found " + std::to_string(options.from));
  }
  const std::vector<int64_t> starts = window_starts(model, tokens, options.context, options.windows);
  Divergence divergence(model, policies, tokens, options);
  for (int64_t window = 0; window < options.windows; ++window) {
    divergence.run_window(window, starts[static_cast<size_t>(window)], progress);
  }
  EvaluationReport report;
  report.title = options.divergence ? "Divergence from the full cache" : "Perplexity";
  report.conditions = {{"metric", options.divergence ? "divergence" : "perplexity"},
                       {"context", options.context},
                       {"windows", options.windows},
                       {"from", options.from},
                       {"prompt_tokens", options.prompt_tokens}};
  report.columns = {{"policy", "policy"},
                    {"bytes_per_token", "bytes/token", "%.0f"},
                    {"bits_per_value", "bits/value", "%.2f"},
                    {"bits_per_value_mean", "mean bits", "%.2f"},
                    {"ratio", "of full", "%.3f"},
                    {"tokens_kept", "kept", "%.0f"},
                    {"perplexity", "perplexity", "%.4f"},
                    {"change_percent", "change %", "%+.3f"},
                    {"change_error", "+-", "%.3f"}};
  if (options.divergence) {
    const std::vector<ReportColumn> columns = {{"kl_mean", "KL mean", "%.5f"},
                                               {"kl_worst_window", "worst window", "%.5f"},
                                               {"kl_p99", "KL p99", "%.4f"},
                                               {"kl_max", "KL max", "%.3f"},
                                               {"same_top_percent", "same top %", "%.2f"},
                                               {"same_top5_percent", "top 5 %", "%.2f"}};
    report.columns.insert(report.columns.end(), columns.begin(), columns.end());
  }
  report.columns.push_back({"seconds", "seconds", "%.1f"});
  report.x_key = "bits_per_value";
  report.x_title = "bits per value, all bytes counted, at the end of the window";
  report.y_key = options.divergence ? "kl_mean" : "change_percent";
  report.y_title = options.divergence ? "mean KL divergence, nats" : "change of perplexity, %";
  report.rows = divergence.rows();
  return report;
}

}  // namespace smartkv
