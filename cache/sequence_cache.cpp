#include "cache/sequence_cache.h"

namespace smartkv {

void SequenceCache::observe(int64_t, const Probe& probe) {
  throw CacheError("observe: position " + std::to_string(probe.position) + " is not a probe query of this cache");
}

}  // namespace smartkv
