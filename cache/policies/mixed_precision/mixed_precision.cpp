#include "cache/policies/mixed_precision/mixed_precision.h"

#include "cache/parameters.h"
#include "cache/policies/mixed_precision/mixed_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

// Below this, dropping the least important quads pays off. Measured, see NOTES.md.
constexpr double kDroppingBits = 3.25;

// Throws CacheError unless the narrowest pages fit into the budget: at the horizon or, with `bytes`, the first page.
void check_budget(const CacheShape& shape, const MixedOptions& options) {
  if (options.bytes > 0) {
    if (mixed_budget(shape, options, 0, 1) >= least_bytes(shape, options, 1)) return;
    throw CacheError(
        "kv_cache.bytes: expected at least " +
        std::to_string(options.bytes + least_bytes(shape, options, 1) - mixed_budget(shape, options, 0, 1)) +
        " (the exact window and the first page), found " + std::to_string(options.bytes));
  }
  const int64_t pages = (options.horizon - options.window) / kPageTokens;
  const int64_t budget = pages < 2 ? 0 : mixed_budget(shape, options, options.horizon, pages),
                least = least_bytes(shape, options, pages);
  if (budget >= least) return;
  const double values = static_cast<double>(2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * options.horizon);
  throw CacheError("kv_cache.bits: expected at least " +
                   std::to_string(options.bits + 8 * static_cast<double>(least - budget) / values) + " (a window of " +
                   std::to_string(options.window) + " tokens, and pages of " + std::to_string(options.least_bits) +
                   " bits with their scales, averaged over kv_cache.horizon, " + std::to_string(options.horizon) +
                   " tokens), found " + std::to_string(options.bits));
}

}  // namespace

std::vector<CacheMetric> mixed_precision_metrics() {
  return {{"forecast_last_loss",
           "forecast_last_loss",
           "Loss of the importance forecast at its last training step.",
           {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}},
          {"forecast_pending",
           "forecast_pending",
           "Forecasts whose outcome was still unknown at the end of a sequence.",
           {0, 10, 30, 100, 300, 1000, 3000}},
          {"forecast_rms_error",
           "forecast_rms_error",
           "RMS error of the forecast's log importance.",
           {0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5}},
          {"average_rms_error",
           "average_rms_error",
           "RMS error of the moving average of log importance, the forecast's baseline.",
           {0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5}}};
}

std::unique_ptr<KvCachePolicy> make_mixed_precision_policy(const PolicyContext& context,
                                                           const nlohmann::json& parameters) {
  constexpr int64_t kMost = int64_t{1} << 24;
  Parameters read("mixed_precision", parameters);
  MixedOptions options;
  options.bits = read.number("bits", options.bits, 1, 16, "per value, every byte counted, from `horizon` tokens on");
  options.least_bits = read.integer("least_bits", options.bits < kDroppingBits ? 0 : 2, 0, 2,
                                    "0: the least columns keep only their mean, the default below 3.25 `bits`; or 2");
  if (options.least_bits == 1) throw CacheError("kv_cache.least_bits: expected 0 or 2, found 1");
  options.bytes = read.integer("bytes", 0, 1, INT64_MAX, "of the whole sequence, instead of `bits` and `horizon`");
  if (read.has("bytes") && (read.has("bits") || read.has("horizon"))) {
    throw CacheError("kv_cache.bytes: expected either bytes, or bits and horizon, found both");
  }
  options.horizon = read.integer("horizon", options.horizon, 1024, kMost, "tokens at which `bits` hold");
  options.window = read.integer("window", options.window, 0, kMost, "most recent tokens, exact");
  // `bytes` leaves room for only little of the prompt to stay dense.
  options.prompt_stride = read_prompt_stride(&read, options.bytes > 0 ? kPageTokens : kPromptStride);
  options.probes = read.integer("probes", options.probes, 1, kPageTokens, "queries before each boundary that count");
  options.decay = read.number("decay", options.decay, 0, 1, "decay of the importance, per compaction boundary");
  ForecastOptions& forecast = options.forecast;
  forecast.enabled = read.boolean("forecast", forecast.enabled, "a small network learns how important pages will be");
  if (!forecast.enabled) {
    read.refuse({"forecast_history", "forecast_update_interval", "forecast_blend", "forecast_lr", "forecast_hidden"},
                "forecast");
  }
  forecast.history = read.integer("forecast_history", forecast.history, ImportanceForecast::kBatch, int64_t{1} << 20,
                                  "samples of its replay buffer; this and the next four need `forecast`");
  forecast.update_interval = read.integer("forecast_update_interval", forecast.update_interval, 1, int64_t{1} << 20,
                                          "new samples per training step");
  forecast.blend = read.number("forecast_blend", forecast.blend, 0, 1, "share of the forecast in the importance");
  forecast.lr = read.number("forecast_lr", forecast.lr, 1e-6, 1, "learning rate of Adam");
  forecast.hidden = read.integer("forecast_hidden", forecast.hidden, 1, 256, "units of the hidden layer");
  read.done();
  check_budget(context.whole_shape(), options);
  const Boundaries boundaries{options.window, options.prompt_stride, 0};
  return std::make_unique<StagedPolicy>("mixed_precision", context, boundaries,
                                        std::make_unique<MixedStoreFactory>(options));
}

}  // namespace smartkv
