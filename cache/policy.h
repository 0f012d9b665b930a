// A KV-cache policy: a named factory of sequence caches. A new one is a folder, a row in registry.cpp and a NOTES.md.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/model_heads.h"
#include "cache/page_pool.h"
#include "cache/sequence_cache.h"

namespace smartkv {

class ThreadPool;
class Gate;  // cache/policies/gated_eviction/gate.h
struct ChannelWorth;  // cache/policies/channel_packed/cut_options.h

// Its caches own what they need of it and may outlive it.
class KvCachePolicy {
 public:
  virtual ~KvCachePolicy() = default;
  virtual std::string_view name() const = 0;
  // Upper bound of the bytes that a sequence on its own holds at any moment while it grows to n_tokens, prompt included;
  // what does not fit into the whole pool is refused.
  virtual int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const = 0;
  // prompt_tokens: how many of the first tokens are the prompt, whose end may be a compaction boundary.
  virtual std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const = 0;
  // Why ranks cannot hold some of the KV heads each: ends the sentence "the policy ...". Empty: they can, because what a KV head
  // holds follows from that head's tokens alone, or the ranks tell each other what it follows from.
  virtual std::string across_heads() const { return "looks at all KV heads"; }
  // Whether its caches ask the other ranks at boundaries (PolicyContext::gather).
  virtual bool exchanges() const { return false; }
  // What save() wrote of one of its sequences. Throws CacheError where that cannot be.
  virtual std::unique_ptr<SequenceCache> load(StateReader* in) const;
};

// Layers that see only the last tokens of a sequence (sliding window attention).
struct SlidingWindow {
  int64_t tokens = 0;         // a query's own included; 0: no layer has a window
  bool in_all_layers = true;  // so that what has left it is never read again
};

// What policies and their caches work with. Each holds a copy: a state in the prefix cache may outlive the policy that made it.
struct PolicyContext {
  CacheShape shape;
  std::shared_ptr<PagePool> pool;
  ThreadPool* threads = nullptr;  // commit() may use it; null: single-threaded
  // RoPE's angles of a position, cos and sin: f32 [head_dim / 2]. Undoing them gives a key before RoPE.
  std::function<void(int64_t position, float* cos, float* sin)> rope = {};
  // The learned gates of a name, never of a path; "": those for this model. Throws CacheError.
  std::function<std::shared_ptr<const Gate>(const std::string& name)> load_gate = {};
  // Returns the worth of the model's channels from a file of `smartkv train-probe`, by name. Throws CacheError. Null: no file is loaded.
  std::function<std::shared_ptr<const ChannelWorth>(const std::string& name)> load_worth = {};
  SlidingWindow window = {};
  std::shared_ptr<ModelHeads> heads = {};  // where ranks hold some of the model's KV heads each, shape's are here; null: all are

  int64_t workers() const;  // the caller included
  int64_t ranks() const { return heads == nullptr ? 1 : heads->ranks(); }
  int64_t all_kv_heads() const { return heads == nullptr ? shape.n_kv_heads : heads->all(); }
  int64_t first_kv_head() const { return heads == nullptr ? 0 : heads->first(heads->rank()); }
  CacheShape whole_shape() const;  // with all KV heads of the model
  // What each rank gives, in order of ranks: the same everywhere, so that all decide alike. See ModelHeads::exchange().
  template <typename T>
  std::vector<std::vector<T>> gather(std::vector<T> own) const {
    std::vector<std::vector<T>> all;
    if (ranks() == 1) {
      all.push_back(std::move(own));
      return all;
    }
    for (const std::vector<std::byte>& bytes : heads->exchange(std::as_bytes(std::span<const T>(own)))) {
      std::memcpy(all.emplace_back(bytes.size() / sizeof(T)).data(), bytes.data(), bytes.size());
    }
    return all;
  }
  void sum(std::span<double> values) const;  // each becomes the sum over all ranks, added up in their order: gather()
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

// A figure of SequenceCache::details() that /metrics adds up over the sequences that finish, by policy.
struct CacheMetric {
  std::string_view key;             // of details()
  std::string_view name;            // of /metrics, without the prefix; a counter's ends in _total
  std::string_view help;            // what it means, a sentence
  std::vector<double> bounds = {};  // upper bounds of a histogram over sequences; empty: a counter
};

// Declared by the policies and by shadow mode, each key once.
const std::vector<CacheMetric>& cache_metrics();

// `spec`: null ("full"), the name of a policy or preset, or {"policy": name, parameters...}. With any policy,
// "shadow": share compares it with the full cache while it runs (cache/shadow/).
std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec);

}  // namespace smartkv
