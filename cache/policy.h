// A KV-cache policy: a named factory of sequence caches. To add one, write a folder with a NOTES.md and a row in
// registry.cpp.
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

#include "cache/frontier.h"
#include "cache/model_heads.h"
#include "cache/page_pool.h"
#include "cache/sequence_cache.h"

namespace smartkv {

class ThreadPool;
class Gate;           // cache/policies/gated_eviction/gate.h
struct ChannelWorth;  // cache/policies/channel_packed/cut_options.h
struct Sensitivity;   // cache/policies/calibrated/sensitivity.h

// Thrown if a policy needs something that can be made for a model, such as a gate or a calibration, and is not there.
class ModelLacks : public CacheError {
  using CacheError::CacheError;
};

// Thread-safe. A policy's caches own what they need of it and may outlive it.
class KvCachePolicy {
 public:
  virtual ~KvCachePolicy() = default;
  virtual std::string_view name() const = 0;
  // What the policy uses because the model lacks a gate or a calibration; empty if it lacks nothing.
  const std::string& stand_in() const { return stand_in_; }
  void set_stand_in(std::string stand_in) { stand_in_ = std::move(stand_in); }
  // The policy's own name and parameters, in place of a preset, a promise or what stands in for either. make_policy()
  // would make the same policy from it.
  const nlohmann::json& spec() const { return spec_; }
  // What the policy promises; absent if it is not on the frontier of a calibration.
  const std::optional<KeptPromise>& promise() const { return promise_; }
  void set_spec(nlohmann::json spec, std::optional<KeptPromise> promise) {
    spec_ = std::move(spec);
    promise_ = std::move(promise);
  }
  // Returns an upper bound of the bytes that a sequence without shared pages holds at any moment while it grows to
  // n_tokens, prompt included. With prompt_tokens 0 the bound applies only after the prompt is computed. The engine
  // rejects a request whose bound exceeds EngineOptions::kv_cache_bytes.
  virtual int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const = 0;
  // Returns an empty cache. prompt_tokens: length of the prompt, the end of which may be a compaction boundary. For a
  // recomputed sequence it is still the length of the prompt, without the output.
  virtual std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const = 0;
  // Returns an empty string if tensor-parallel ranks can each hold some of the KV heads: either a KV head's content
  // depends on that head only, or the ranks exchange what it depends on. Otherwise returns the reason, as a predicate
  // of "the policy".
  virtual std::string across_heads() const { return "needs all KV heads in one process"; }
  // Whether its caches communicate with the other ranks at boundaries (PolicyContext::gather()).
  virtual bool exchanges() const { return false; }
  // Restores a sequence from the output of SequenceCache::save(). Throws CacheError if the data cannot be used.
  virtual std::unique_ptr<SequenceCache> load(StateReader* in) const;

 private:
  std::string stand_in_;
  nlohmann::json spec_;
  std::optional<KeptPromise> promise_;
};

// Describes layers with sliding-window attention, which see only the last tokens of a sequence.
struct SlidingWindow {
  int64_t tokens = 0;    // including the query's own; 0 if no layer has a window
  int64_t n_layers = 0;  // layers that have it
};

// The environment of policies and their caches. Every policy and every cache holds a copy, because a state in the
// prefix cache may outlive the policy that created it. REQUIRES: `threads` and the model behind `rope` outlive all
// copies.
struct PolicyContext {
  // Counts the layers with full attention, to which policies apply. make_policy() adds caches for the others.
  CacheShape shape;
  std::shared_ptr<PagePool> pool;
  ThreadPool* threads = nullptr;  // used by commit(); null means single-threaded
  // Writes the cosines and sines of the rotary embedding that layers with full attention have, for a position: f32
  // [head_dim / 2] each. With them a policy can undo the rotation of a key.
  std::function<void(int64_t position, float* cos, float* sin)> rope = {};
  // Returns the learned gates of a name (not a path); "" selects the gates trained for this model. Throws CacheError.
  // Null in a context without gates.
  std::function<std::shared_ptr<const Gate>(const std::string& name)> load_gate = {};
  // Returns the worth of the model's channels, read from a file of `smartkv train-probe`. `name` is the one that
  // requests use for the file. Throws CacheError. Null in a context without such files.
  std::function<std::shared_ptr<const ChannelWorth>(const std::string& name)> load_worth = {};
  // Returns how much the error of each channel matters to the model; null if it was not calibrated. May be null.
  std::function<std::shared_ptr<const Sensitivity>()> load_sensitivity = {};
  SlidingWindow window = {};
  float soft_cap = 0;  // kernels::AttentionShape::soft_cap
  // Returns kernels::AttentionShape::sinks of a layer. Null in a context without a model.
  std::function<const float*(int64_t layer)> sinks = {};
  // The KV heads of the model that this tensor-parallel rank holds; null if it holds all. `shape` counts only these.
  std::shared_ptr<ModelHeads> heads = {};

  int64_t workers() const;                                               // threads, including the caller
  int64_t n_layers() const { return shape.n_layers + window.n_layers; }  // layers of the model
  int64_t ranks() const { return heads == nullptr ? 1 : heads->ranks(); }
  int64_t all_kv_heads() const { return heads == nullptr ? shape.n_kv_heads : heads->all(); }
  int64_t first_kv_head() const { return heads == nullptr ? 0 : heads->first(heads->rank()); }
  CacheShape whole_shape() const;  // `shape` with all KV heads of the model
  // Returns the values that each rank passed, in the order of ranks. The result is the same on every rank, so that all
  // make the same decisions. REQUIRES: the policy exchanges(), and all ranks call it while they commit the same
  // boundary, on the thread that commits. See ModelHeads::exchange().
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
  // Replaces each value by its sum over all ranks, added in their order. Uses gather().
  void sum(std::span<double> values) const;
  // Runs task(i) for i in [0, n), on `threads` if set. Throws the first exception after all tasks have ended.
  void for_each(int64_t n, const std::function<void(int64_t)>& task) const;
};

// A test case of the policy conformance suite. Its parameters make the policy compress a sequence of a thousand tokens
// several times.
struct PolicyTrial {
  std::string_view name;        // suffix of the policy's name in the suite; "" for the policy itself
  std::string_view parameters;  // a JSON object
  bool by_contents = false;     // contents decide how many bytes are held, so stores state upper bounds
  bool cuts_pages = false;      // needs a backend that cuts pages
};

struct PolicyRow {
  std::string_view name;
  std::string_view summary;  // one line for --help
  // Throws CacheError that names the offending key of `parameters`. Unknown keys are errors.
  std::unique_ptr<KvCachePolicy> (*create)(const PolicyContext& context, const nlohmann::json& parameters);
  // Whether the policy uses the model's calibration if there is one, and may have something in place of it.
  bool calibrated = false;
  // For tests. May be empty if the policy compresses so often with its default parameters.
  std::vector<PolicyTrial> trials = {};  // the first one is the policy itself
  std::string_view brief_trial = "{}";   // a JSON object: parameters that compress a few hundred tokens
};

const std::vector<PolicyRow>& policy_registry();

// A value of SequenceCache::details() that /metrics aggregates over finished sequences, by policy.
struct CacheMetric {
  std::string_view key;             // in details()
  std::string_view name;            // in /metrics, without the prefix; the name of a counter ends in _total
  std::string_view help;            // a sentence
  std::vector<double> bounds = {};  // upper bounds of a histogram over sequences; empty for a counter
};

// Returns the metrics that the policies and shadow mode declare. Each key occurs once.
const std::vector<CacheMetric>& cache_metrics();

// Creates the policy that `spec` names: null ("full"), the name of a policy or preset, {"policy": name, parameters...},
// or a promise (frontier.h). Every policy accepts the parameters "shadow", the share of positions at which it is
// compared with the full cache while it runs, and "on_drift", what happens if it breaks its promise (cache/shadow/).
// Layers with a sliding window have the same cache under every policy (layered_cache.h). Throws CacheError.
std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec);

}  // namespace smartkv
