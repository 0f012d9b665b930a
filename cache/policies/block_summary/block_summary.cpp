#include "cache/policies/block_summary/block_summary.h"

#include "cache/policies/block_summary/summary_store.h"
#include "cache/stages/page_store.h"
#include "cache/stages/staged_policy.h"

namespace smartkv {

using kernels::kPageTokens;

std::unique_ptr<KvCachePolicy> make_block_summary_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  constexpr int64_t kMost = int64_t{1} << 24;
  Parameters read("block_summary", parameters);
  const int64_t tokens = read.integer("tokens", 0, 0, kMost);
  // Of a budget, half is the window.
  const int64_t window = read.integer("window", tokens == 0 ? 1024 : std::max(kPageTokens, tokens / 2), 1, kMost);
  SummaryOptions options;
  const int64_t beside = whole_pages(window) + kPageTokens;
  if (tokens > 0) options.capacity = (tokens - beside) / kPageTokens * kPageTokens;
  options.outliers = tokens > 0 ? options.capacity / 2 : 256;
  options = read_summary_options(&read, options);
  options.sinks = read.integer("sinks", options.sinks, 0, kPageTokens);
  const int64_t stride = read_prompt_stride(&read, kPromptStride);
  read.done();
  if (tokens > 0) check_summary_capacity(options, "tokens", beside, tokens);
  std::shared_ptr<const TokenScorer> scorer;
  if (options.salient > 0 && options.salience == Salience::kGate) scorer = make_scorer(context, "learned", options.gate);
  return std::make_unique<StagedPolicy>("block_summary", context, Boundaries{whole_pages(window), stride},
                                        std::make_unique<SummaryStoreFactory>(options, scorer));
}

}  // namespace smartkv
