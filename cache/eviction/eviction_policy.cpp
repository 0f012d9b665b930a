#include "cache/eviction/eviction_policy.h"

namespace smartkv {

EvictionPolicy::EvictionPolicy(std::string_view name, const PolicyContext& context, const EvictionOptions& options,
                               std::unique_ptr<TokenScorer> scorer)
    : name_(name), context_(context), options_(options), scorer_(std::move(scorer)) {
  check_eviction(options);
}

EvictionOptions read_eviction_options(Parameters* parameters, const EvictionOptions& defaults) {
  constexpr int64_t kMost = int64_t{1} << 24;
  EvictionOptions options;
  options.tokens = parameters->integer("tokens", defaults.tokens, 1, kMost);
  options.sinks = parameters->integer("sinks", defaults.sinks, 0, kMost);
  options.window = parameters->integer("window", defaults.window, 1, kMost);
  options.exact_prefill =
      parameters->choice("prefill", defaults.exact_prefill ? "exact" : "streaming", {"exact", "streaming"}) == "exact";
  return options;
}

}  // namespace smartkv
