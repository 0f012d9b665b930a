// The policies that differ by their scorer alone: gated_eviction, streaming, random, snapkv.
#pragma once

#include "cache/eviction/eviction_sequence.h"
#include "cache/eviction/token_scorer.h"
#include "cache/parameters.h"

namespace smartkv {

class EvictionPolicy final : public KvCachePolicy {
 public:
  // Throws CacheError when the options leave no room.
  EvictionPolicy(std::string_view name, const PolicyContext& context, const EvictionOptions& options,
                 std::unique_ptr<TokenScorer> scorer);

  std::string_view name() const override { return name_; }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    return eviction_max_bytes(context_.shape, options_, prompt_tokens, n_tokens);
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<EvictionSequence>(context_, options_, scorer_, prompt_tokens);
  }

 private:
  std::string_view name_;
  PolicyContext context_;
  EvictionOptions options_;
  std::shared_ptr<const TokenScorer> scorer_;
};

// The parameters that all of them take: tokens, sinks, window, prefill ("exact" or "streaming"), kept ("dense", or the
// format of the pages that the prompt's prune packs). Throws CacheError.
EvictionOptions read_eviction_options(Parameters* parameters, const CacheShape& shape, const EvictionOptions& defaults);

}  // namespace smartkv
