// A KV-cache policy: a named factory of sequence caches. A new one is a folder, a row in registry.cpp and a NOTES.md.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/page_pool.h"
#include "cache/sequence_cache.h"

namespace smartkv {

class ThreadPool;
class Gate;  // cache/policies/gated_eviction/gate.h

// Outlives its sequences.
class KvCachePolicy {
 public:
  virtual ~KvCachePolicy() = default;
  virtual std::string_view name() const = 0;
  // Upper bound of the bytes that a sequence on its own holds at any moment while it grows to n_tokens, prompt included;
  // what does not fit into the whole pool is refused.
  virtual int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const = 0;
  // prompt_tokens: how many of the first tokens are the prompt, whose end may be a compaction boundary.
  virtual std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const = 0;
  // What it decides by looking at all KV heads: ends the sentence "the policy ...". Empty: what a KV head holds follows from that
  // head's tokens alone, so that ranks may hold some of the heads each.
  virtual std::string across_heads() const { return "looks at all KV heads"; }
  // What save() wrote of one of its sequences. Throws CacheError where that cannot be.
  virtual std::unique_ptr<SequenceCache> load(StateReader* in) const;
};

// Layers that see only the last tokens of a sequence (sliding window attention).
struct SlidingWindow {
  int64_t tokens = 0;         // a query's own included; 0: no layer has a window
  bool in_all_layers = true;  // so that what has left it is never read again
};

// What policies work with. Outlives them.
struct PolicyContext {
  CacheShape shape;
  std::shared_ptr<PagePool> pool;
  ThreadPool* threads = nullptr;  // commit() may use it; null: single-threaded
  // RoPE's angles of a position, cos and sin: f32 [head_dim / 2]. Undoing them gives a key before RoPE.
  std::function<void(int64_t position, float* cos, float* sin)> rope = {};
  // The learned gates of a name, never of a path; "": those for this model. Throws CacheError.
  std::function<std::shared_ptr<const Gate>(const std::string& name)> load_gate = {};
  SlidingWindow window = {};
  int64_t first_kv_head = 0;  // of a rank's part of a model: which of the model's KV heads its first one is

  int64_t workers() const;  // the caller included
  // task(i) for i in [0, n), on the threads if there are any. The first exception is thrown here when all have ended.
  void for_each(int64_t n, const std::function<void(int64_t)>& task) const;
};

struct PolicyRow {
  std::string_view name;
  std::string_view summary;  // one line for --help
  // Throws CacheError naming the key of `parameters` at fault; unknown keys are errors.
  std::unique_ptr<KvCachePolicy> (*create)(const PolicyContext& context, const nlohmann::json& parameters);
  // Its views end with the last tokens in order, as many as a sliding window has: it runs in models that have one.
  bool in_order = false;
};

const std::vector<PolicyRow>& policy_registry();

// What SequenceCache::details() says under `key`, as a gauge of /metrics.
struct CacheMetric {
  std::string_view key, gauge;
};

// Declared by the policies and by shadow mode, each key once.
const std::vector<CacheMetric>& cache_metrics();

// `spec`: null ("full"), the name of a policy or preset, or {"policy": name, parameters...}. With any policy,
// "shadow": share compares it with the full cache while it runs (cache/shadow/).
std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec);

}  // namespace smartkv
