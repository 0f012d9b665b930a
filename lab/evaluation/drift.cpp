#include "lab/evaluation/drift.h"

#include <algorithm>
#include <cmath>

#include "lab/evaluation/shadow_cache.h"

namespace smartkv {
namespace {

using PolicyDrift = std::vector<LayerDrift>;  // one element per layer

void check_finite(std::span<const PolicyDrift> drift, std::span<const PolicySpec> policies, int64_t window) {
  for (size_t p = 0; p < drift.size(); ++p) {
    for (size_t layer = 0; layer < drift[p].size(); ++layer) {
      if (std::isfinite(drift[p][layer].error)) continue;
      throw EvaluationError("policy \"" + policies[p].label + "\", window " + std::to_string(window) + ", layer " +
                            std::to_string(layer) + ": expected a finite attention output, found NaN or infinity");
    }
  }
}

nlohmann::ordered_json drift_row(const PolicySpec& spec, const LayerDrift& drift, double bits) {
  const auto mean = [](double sum, int64_t n) {
    return n == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(sum / static_cast<double>(n));
  };
  return {{"policy", spec.label},
          {"bits_per_value", bits},
          {"error", mean(drift.error, drift.samples)},
          {"error_max", drift.error_max},
          {"jaccard", mean(drift.jaccard, drift.sets)},
          {"samples", drift.samples}};
}

}  // namespace

EvaluationReport measure_drift(const EvaluationModel& model, std::span<const PolicySpec> policies,
                               std::span<const TokenId> tokens, const DriftOptions& options, const Progress& progress) {
  // Tokens of a pass. It is small because a pass computes the attention of every query from its first to its last
  // sample.
  constexpr int64_t kChunk = 64;
  if (model.shape.n_layers == 0) {
    throw EvaluationError(
        "drift: expected a model with a layer that attends to all tokens, found a sliding_window of " +
        std::to_string(model.model.config().sliding_window) + " tokens in all layers");
  }
  const std::vector<int64_t> starts = window_starts(model, tokens, options.context, options.windows);
  const CacheShape& shape = model.shape;
  const ShadowOptions shadow{{.n_heads = model.model.config().n_heads,
                              .n_kv_heads = shape.n_kv_heads,
                              .head_dim = shape.head_dim,
                              .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                              .type = shape.type,
                              .soft_cap = static_cast<float>(model.model.config().attention_soft_cap)},
                             {std::max<int64_t>(1, std::llround(1 / options.share))},
                             [&model](int64_t layer) { return model.model.attention_sinks(layer); }};
  std::vector<std::unique_ptr<KvCachePolicy>> made;
  for (const PolicySpec& spec : policies) made.push_back(model.make_policy(spec.for_context(options.context)));
  std::vector<PolicyDrift> drift(policies.size(), PolicyDrift(static_cast<size_t>(shape.n_layers)));
  std::vector<double> bytes(policies.size(), 0);
  for (size_t window = 0; window < starts.size(); ++window) {
    std::vector<std::unique_ptr<SequenceCache>> compressed;
    std::vector<const SequenceCache*> seen;
    for (const auto& policy : made)
      seen.push_back(compressed.emplace_back(policy->new_sequence(options.prompt_tokens)).get());
    ShadowCache cache(shadow, *model.model.kv_backend(), made[0]->new_sequence(options.prompt_tokens),
                      std::move(compressed), &drift);
    for (int64_t at = 0; at < options.context; at += kChunk) {
      const int64_t n = std::min(kChunk, options.context - at);
      feed(model.model, cache, tokens.subspan(static_cast<size_t>(starts[window] + at), static_cast<size_t>(n)), 0,
           nullptr);
      check_finite(drift, policies, static_cast<int64_t>(window));
      if (progress) {
        const double done = static_cast<double>(at + n) / static_cast<double>(options.context);
        progress((static_cast<double>(window) + done) / static_cast<double>(starts.size()));
      }
    }
    for (size_t p = 0; p < seen.size(); ++p) bytes[p] += static_cast<double>(seen[p]->stats().policy_bytes());
  }

  EvaluationReport report;
  report.title = "Drift of attention from the full cache, layer by layer";
  report.conditions = {{"metric", "drift"},          {"context", options.context},
                       {"windows", options.windows}, {"prompt_tokens", options.prompt_tokens},
                       {"share", options.share},     {"most_attended", kMostAttended}};
  report.columns = {{"policy", "policy"},
                    {"layer", "layer"},
                    {"bits_per_value", "bits/value", "%.2f"},
                    {"error", "L2 error", "%.5f"},
                    {"error_max", "L2 max", "%.4f"},
                    {"jaccard", "Jaccard", "%.4f"},
                    {"samples", "samples", "%.0f"}};
  const double values =
      static_cast<double>(options.windows * options.context * 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim);
  for (size_t p = 0; p < policies.size(); ++p) {
    LayerDrift all;
    for (size_t layer = 0; layer < drift[p].size(); ++layer) {
      const LayerDrift& one = drift[p][layer];
      report.rows.push_back(drift_row(policies[p], one, 8 * bytes[p] / values));
      report.rows.back()["layer"] = layer;
      all += one;
    }
    report.rows.push_back(drift_row(policies[p], all, 8 * bytes[p] / values));
    report.rows.back()["layer"] = "all";
    report.rows.back()["overall_error"] = report.rows.back()["error"];  // only these rows are in the chart
  }
  report.x_key = "bits_per_value";
  report.x_title = "bits per value, all bytes counted, at the end of the window";
  report.y_key = "overall_error";
  report.y_title = "mean relative L2 error of the attention output";
  return report;
}

}  // namespace smartkv
