// A KV-cache policy: a named factory of sequence caches. A new one is a folder, a row in registry.cpp and a NOTES.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/page_pool.h"
#include "cache/sequence_cache.h"

namespace smartkv {

class KvCachePolicy {
 public:
  virtual ~KvCachePolicy() = default;
  virtual std::string_view name() const = 0;
  // Upper bound of stats().bytes of a sequence of n tokens; admission reserves it.
  virtual int64_t max_bytes(int64_t n_tokens) const = 0;
  virtual std::unique_ptr<SequenceCache> new_sequence() const = 0;
};

struct PolicyContext {
  CacheShape shape;
  std::shared_ptr<PagePool> pool;
};

struct PolicyRow {
  std::string_view name;
  std::string_view summary;  // one line for --help
  // Throws CacheError naming the key of `parameters` at fault; unknown keys are errors.
  std::unique_ptr<KvCachePolicy> (*create)(const PolicyContext& context, const nlohmann::json& parameters);
};

const std::vector<PolicyRow>& policy_registry();

// `spec`: null ("full"), a policy's name, or {"policy": name, parameters...}.
std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec);

}  // namespace smartkv
