#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<SequenceCache> KvCachePolicy::load(StateReader* /*in*/) const {
  throw CacheError("state: \"" + std::string(name()) + "\" has none for files");
}

}  // namespace smartkv
