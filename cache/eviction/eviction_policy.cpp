#include "cache/eviction/eviction_policy.h"

namespace smartkv {

EvictionPolicy::EvictionPolicy(std::string_view name, const PolicyContext& context, const EvictionOptions& options,
                               std::unique_ptr<TokenScorer> scorer)
    : name_(name), context_(context), options_(options), scorer_(std::move(scorer)) {
  check_eviction(options);
}

EvictionOptions read_eviction_options(Parameters* parameters, const CacheShape& shape, const EvictionOptions& defaults) {
  constexpr int64_t kMost = int64_t{1} << 24;
  EvictionOptions options;
  options.tokens = parameters->integer("tokens", defaults.tokens, 1, kMost);
  options.sinks = parameters->integer("sinks", defaults.sinks, 0, kMost);
  options.window = parameters->integer("window", defaults.window, 1, kMost);
  options.exact_prefill =
      parameters->choice("prefill", defaults.exact_prefill ? "exact" : "streaming", {"exact", "streaming"}) == "exact";
  const std::string kept = parameters->choice("kept", "dense", {"dense", "k8v8", "k8v4", "k4v4", "k3v3", "k2v2"});
  if (kept != "dense") {
    check_quantizable(shape, "kept: " + kept);
    if (!options.exact_prefill) {
      throw CacheError("kv_cache.kept: expected \"dense\" with prefill \"streaming\", which has no prune at the prompt's "
                       "end that could pack, found \"" + kept + "\"");
    }
    options.packed = {kernels::uniform_runs(shape.head_dim, kept[1] - '0'),
                      kernels::uniform_runs(kernels::kPageTokens, kept[3] - '0')};
  }
  return options;
}

}  // namespace smartkv
