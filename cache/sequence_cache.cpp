#include "cache/sequence_cache.h"

namespace smartkv {

void SequenceCache::observe(int64_t, int64_t position, std::span<const float>) {
  throw CacheError("observe: position " + std::to_string(position) + " is no probe of this cache");
}

}  // namespace smartkv
