#include "cache/policies/block_summary/lost_summaries.h"

#include <nlohmann/json.hpp>

#include "cache/policies/block_summary/summary_store.h"

namespace smartkv {

using kernels::kPageTokens;

std::unique_ptr<StoreFactory> read_lost_store(Parameters* parameters, EvictionOptions* options) {
  const nlohmann::json* given = parameters->object("lost");
  if (given == nullptr &&
      parameters->choice("lost", "nothing", {"nothing", "summaries"}, "what evicted tokens become") == "nothing")
    return nullptr;
  const nlohmann::json none = nlohmann::json::object();
  Parameters read("summaries", given == nullptr ? none : *given, "kv_cache.lost", "store");
  read.choice("store", "summaries", {"summaries"}, "the only one");
  const int64_t slots = eviction_slots(*options), least = std::max(options->sinks, kPageTokens);
  const int64_t quarter = std::max(kPageTokens, slots / 4 / kPageTokens * kPageTokens);
  SummaryOptions summaries;
  const int64_t tokens = read.integer("tokens", quarter, kPageTokens, int64_t{1} << 24,
                                      "of the policy's `tokens`; by default a quarter of its slots");
  summaries.capacity = tokens / kPageTokens * kPageTokens;
  summaries.sinks = 0;  // Sinks have slots.
  summaries.salience = Salience::kNovelty;
  summaries = read_summary_options(&read, summaries);
  read.done();
  if (summaries.salient > 0 && summaries.salience == Salience::kGate) {
    throw CacheError(
        "kv_cache.lost.salience: expected \"novelty\", \"value_norm\" or \"attention\" for evicted tokens, "
        "found \"gate\"");
  }
  check_summary_capacity(summaries, "lost.tokens", 0, tokens);
  if (slots - summaries.capacity < whole_pages(least)) {
    throw CacheError("kv_cache.lost.tokens: expected at most " + std::to_string(slots - whole_pages(least)) +
                     ", which leaves " + std::to_string(whole_pages(least)) + " slots for exact tokens, found " +
                     std::to_string(tokens));
  }
  options->tokens -= summaries.capacity;
  options->hand_on = true;
  return std::make_unique<SummaryStoreFactory>(summaries, std::nullopt);
}

}  // namespace smartkv
