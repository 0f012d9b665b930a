#include "engine/prefix_claim.h"

namespace smartkv {

std::unique_ptr<SequenceCache> PrefixClaim::find(PrefixCache* prefixes, const std::string& key,
                                                 const KvCachePolicy& policy, std::span<const int32_t> prompt,
                                                 int64_t* diverges_at, int64_t most, PrefixCache::Lookup* lookup) {
  return prefixes->find(key, policy, prompt, diverges_at, &state_, most, lookup);
}

void PrefixClaim::store(PrefixCache* prefixes, const std::string& key, std::span<const int32_t> tokens,
                        const SequenceCache& cache, const std::shared_ptr<Turn>& turn) {
  std::unique_ptr<SequenceCache> fork = cache.fork();
  const int64_t bytes = fork->stats().bytes;
  const PrefixCache::Held stored = prefixes->insert(key, tokens, std::move(fork), bytes - bytes_, turn);
  if (stored != nullptr) bytes_ = bytes;
  // Keep the state from which the cache resumed. The one at the prompt's end is for others.
  if (state_ == nullptr) state_ = stored;
  run();
}

}  // namespace smartkv
