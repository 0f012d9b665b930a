// Reports in which precision a cache holds each token, for people to look at. The precision is derived from what the
// cache shows to attention.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// The tiers, by index:
//  - 0: exact, in the model's own type.
//  - 1 to 8: quantized to this many bits, the mean of K's and V's, rounded up.
//  - 9: summarized: an entry stands for several tokens.
//  - 10: evicted: no entry stands for the token.
constexpr size_t kExactTier = 0, kSummarisedTier = 9, kEvictedTier = 10, kTiers = 11;
std::string_view tier_name(size_t tier);  // Such as "exact", "4_bit", "summarised" or "evicted".

using TierShares = std::array<double, kTiers>;

struct TierUse {
  // Tokens in each tier, averaged over layers and KV heads. Their sum is tokens().
  TierShares tokens = {};
  // Bytes of the pages from which attention reads each tier, over all layers. An index and a policy's state do not
  // count.
  TierShares bytes = {};

  TierUse& operator+=(const TierUse& other);
};

// Returns the tiers of a cache. It goes through the view of every layer once, and through single entries only where
// they have a bias.
TierUse tier_use(const SequenceCache& cache, const CacheShape& shape);

// Positions [first, end), which have the same shares throughout. The shares are averaged over the layer's KV heads and
// over these positions, and add up to 1. If a KV head has any summary, all tokens that it does not hold one by one
// count as summarized.
struct TierSpan {
  int64_t first = 0, end = 0;
  TierShares shares = {};
};

// Returns spans that cover the whole sequence in rising order, at most `most` of them (a power of two). In long
// sequences each span averages over a power of two of positions, or several of these that are alike.
std::vector<TierSpan> tier_spans(const SequenceCache& cache, const CacheShape& shape, int64_t layer, int64_t most);

}  // namespace smartkv
