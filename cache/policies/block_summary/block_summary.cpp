#include "cache/policies/block_summary/block_summary.h"

#include <algorithm>
#include <charconv>

#include "cache/policies/block_summary/summary_store.h"
#include "cache/policies/gated_eviction/scorers.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

// Reads the parameter "layers", "LO-HI": only these layers are compressed. They count from 0, both included.
void read_layers(Parameters* read, int64_t n_layers, SummaryOptions* options) {
  const std::string text = read->text("layers", "0-" + std::to_string(n_layers - 1),
                                      "layers that are compressed, all by default; the others keep every token");
  int64_t lo = -1, hi = -1;
  const char* end = text.data() + text.size();
  const auto [dash, first] = std::from_chars(text.data(), end, lo);
  if (first == std::errc() && dash != end && *dash == '-') {
    const auto [rest, second] = std::from_chars(dash + 1, end, hi);
    if (second != std::errc() || rest != end) hi = -1;
  }
  if (lo < 0 || hi < lo || hi >= n_layers) {
    throw CacheError("kv_cache.layers: expected LO-HI with layers from 0 to " + std::to_string(n_layers - 1) +
                     ", found \"" + text + "\"");
  }
  options->first_layer = lo;
  options->last_layer = hi;
}

}  // namespace

std::vector<CacheMetric> block_summary_metrics() {
  const std::vector<double> entries = {0, 10, 30, 100, 300, 1000, 3000, 10000};
  return {{"watermark_hits", "summary_watermark_hits_total",
           "Consolidations because a sequence exceeded its limit of entries."},
          {"consolidations", "summary_consolidations_total", "Consolidations of summaries into the next level."},
          {"summarized_tokens", "summarized_tokens_total",
           "Tokens that the summary store took over, per layer and KV head."},
          {"outlier_entries", "summary_outlier_entries",
           "Outliers, which are tokens kept exact, per layer and KV head at the end of a sequence.", entries},
          {"summary_entries", "summary_entries", "Summaries per layer and KV head at the end of a sequence.", entries},
          {"summary_levels", "summary_levels", "Levels of summaries at the end of a sequence.", {0, 1, 2, 3, 4, 6, 8}},
          {"mass_error",
           "summary_mass_error",
           "Difference between the tokens that entries represent and the tokens taken over; always 0.",
           {0, 1, 10, 100}}};
}

std::unique_ptr<KvCachePolicy> make_block_summary_policy(const PolicyContext& context,
                                                         const nlohmann::json& parameters) {
  constexpr int64_t kMost = int64_t{1} << 24;
  Parameters read("block_summary", parameters);
  const int64_t tokens = read.integer("tokens", 0, 0, kMost, "kept in all; 0: as many as the levels make");
  // If there is a budget, the window is a quarter of it.
  const int64_t window = read.integer("window", tokens == 0 ? 1024 : std::max(kPageTokens, tokens / 4), 1, kMost,
                                      "most recent tokens, exact; by default a quarter of `tokens`");
  SummaryOptions options;
  const int64_t beside = whole_pages(window) + kPageTokens;
  if (tokens > 0) options.capacity = (tokens - beside) / kPageTokens * kPageTokens;
  options.outliers = tokens > 0 ? options.capacity / 3 : 256;
  options = read_summary_options(&read, options);
  options.sinks = read.integer("sinks", options.sinks, 0, kPageTokens, "first tokens, which stay");
  read_layers(&read, context.shape.n_layers, &options);
  const int64_t stride = read_prompt_stride(&read, kPrefillChunk);
  read.done();
  if (tokens > 0) check_summary_capacity(options, "tokens", beside, tokens);
  std::optional<TokenScorer> scorer;
  std::string stand_in;
  if (options.salient > 0 && options.salience == Salience::kGate) {
    BestScorer best = make_best_scorer(context, options.gate, true);
    stand_in = std::move(best.stand_in);
    if (attention_scorer(best.scorer) == nullptr) {
      scorer = std::move(best.scorer);
    } else {
      options.salience = Salience::kAttention;
    }
  }
  auto policy = std::make_unique<StagedPolicy>("block_summary", context, Boundaries{whole_pages(window), stride},
                                               std::make_unique<SummaryStoreFactory>(options, scorer));
  policy->set_stand_in(std::move(stand_in));
  return policy;
}

}  // namespace smartkv
