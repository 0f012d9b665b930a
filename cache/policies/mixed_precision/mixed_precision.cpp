#include "cache/policies/mixed_precision/mixed_precision.h"

#include "cache/parameters.h"
#include "cache/policies/mixed_precision/mixed_sequence.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

class MixedPolicy final : public KvCachePolicy {
 public:
  MixedPolicy(const PolicyContext& context, const MixedOptions& options) : context_(context), options_(options) {}

  std::string_view name() const override { return "mixed_precision"; }
  int64_t max_bytes(int64_t /*prompt_tokens*/, int64_t n_tokens) const override {
    const CacheShape& shape = context_.shape;
    const int64_t pages = (n_tokens + kPageTokens - 1) / kPageTokens;
    const int64_t dense = std::min(n_tokens, options_.window + 2 * kPageTokens);
    const kernels::QuantizedLayout widest{kernels::uniform_runs(shape.head_dim, 8), kernels::uniform_runs(kPageTokens, 8)};
    const int64_t first = shape.n_layers * quantized_bytes(shape, widest);
    return dense_bytes(shape, dense) + first + mixed_budget(shape, options_, n_tokens, pages) + (int64_t{1} << 20);
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t /*prompt_tokens*/) const override {
    return std::make_unique<MixedSequence>(context_, options_);
  }

 private:
  PolicyContext context_;
  MixedOptions options_;
};

}  // namespace

std::unique_ptr<KvCachePolicy> make_mixed_precision_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  constexpr int64_t kMost = int64_t{1} << 24;
  Parameters read("mixed_precision", parameters);
  MixedOptions options;
  options.bits = read.number("bits", options.bits, 2.6, 16);
  options.horizon = read.integer("horizon", options.horizon, 1024, kMost);
  options.window = read.integer("window", options.window, 1, kMost);
  options.probes = read.integer("probes", options.probes, 1, kPageTokens);
  options.decay = read.number("decay", options.decay, 0, 1);
  ForecastOptions& forecast = options.forecast;
  forecast.enabled = read.boolean("forecast", forecast.enabled);
  forecast.history = read.integer("forecast_history", forecast.history, ImportanceForecast::kBatch, int64_t{1} << 20);
  forecast.update_interval = read.integer("forecast_update_interval", forecast.update_interval, 1, int64_t{1} << 20);
  forecast.blend = read.number("forecast_blend", forecast.blend, 0, 1);
  forecast.lr = read.number("forecast_lr", forecast.lr, 1e-6, 1);
  read.done();
  check_quantizable(context.shape, "mixed_precision");
  return std::make_unique<MixedPolicy>(context, options);
}

}  // namespace smartkv
