#include "engine/prefix_claim.h"

#include <algorithm>

#include "cache/boundaries.h"

namespace smartkv {

namespace {

// Returns the bytes that a cache and its fork still share once either has grown.
int64_t bytes_shared_by_forks(const SequenceCache& cache) {
  const CacheStats stats = cache.stats();
  if (stats.tokens % kernels::kPageTokens == 0) return stats.bytes;
  const int64_t page = stats.full_bytes / (whole_pages(stats.tokens) / kernels::kPageTokens);
  return std::max<int64_t>(0, stats.bytes - page);
}

}  // namespace

void PrefixClaim::begin(const SequenceCache& cache) { bytes_ = bytes_shared_by_forks(cache); }

std::unique_ptr<SequenceCache> PrefixClaim::find(PrefixCache* prefixes, const std::string& key,
                                                 const KvCachePolicy& policy, std::span<const int32_t> prompt,
                                                 int64_t* diverges_at, int64_t most, PrefixCache::Lookup* lookup) {
  return prefixes->find(key, policy, prompt, diverges_at, &state_, most, lookup);
}

void PrefixClaim::store(PrefixCache* prefixes, const std::string& key, std::span<const int32_t> tokens,
                        const SequenceCache& cache, const std::shared_ptr<Turn>& turn) {
  std::unique_ptr<SequenceCache> fork = cache.fork();
  const int64_t own_bytes = fork->stats().bytes - bytes_;
  const PrefixCache::Held stored = prefixes->insert(key, tokens, std::move(fork), own_bytes, turn);
  if (stored != nullptr) bytes_ = bytes_shared_by_forks(cache);
  // Keep the state from which the cache resumed. The one at the prompt's end is for others.
  if (state_ == nullptr) state_ = stored;
  run();
}

}  // namespace smartkv
