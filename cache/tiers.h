// What a cache keeps of each token, for people to look at: told by what it shows to attention.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// 0: exact, in the model's own type; 1 to 8: codes of so many bits, the mean of K's and V's, rounded up; then those that
// an entry for several tokens stands for; then those that nothing stands for.
constexpr size_t kExactTier = 0, kSummarisedTier = 9, kEvictedTier = 10, kTiers = 11;
std::string_view tier_name(size_t tier);  // "exact", "4_bit", "summarised", "evicted"

using TierShares = std::array<double, kTiers>;

struct TierUse {
  TierShares tokens = {};  // mean over layers and KV heads; together tokens()
  TierShares bytes = {};   // of the pages that attention reads them from, over all layers; an index or a policy's state is not in it

  TierUse& operator+=(const TierUse& other);
};

// Goes through the view of every layer once, and through entries only where they have a bias.
TierUse tier_use(const SequenceCache& cache, const CacheShape& shape);

// Positions [first, end) with the same shares, of the layer's KV heads and of these positions; together 1. Summaries take all
// that reaches them, so a head that has any has summarised what it does not hold itself.
struct TierSpan {
  int64_t first = 0, end = 0;
  TierShares shares = {};
};

// Of the whole sequence in rising order, at most `most` (a power of two): long sequences in stretches of a power of two.
std::vector<TierSpan> tier_spans(const SequenceCache& cache, const CacheShape& shape, int64_t layer, int64_t most);

}  // namespace smartkv
