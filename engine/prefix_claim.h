// A sequence's hold on one state of the prefix cache, which keeps that state from being evicted early: the state from
// which the sequence's cache resumes or, without a prefix hit, the first state that it stores. The cache of a mirrored
// draft has a claim of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "cache/prefix_cache.h"

namespace smartkv {

// A waiting sequence calls claim(). When it starts, it calls find(), run() and begin(), and then store() at each state
// that it leaves for others. Used by the engine thread.
class PrefixClaim {
 public:
  const PrefixCache::Held& state() const { return state_; }  // null if there is none
  // Returns the number of running sequences that use the state's pages.
  int64_t sharers() const { return state_ == nullptr ? 0 : state_->running.use_count() - 1; }

  // Claims the state from which a waiting sequence will resume; null if there is none.
  void claim(PrefixCache::Held state) { state_ = std::move(state); }
  // Finds a cache for the prompt and claims its state. See PrefixCache::find() for the parameters and the result.
  std::unique_ptr<SequenceCache> find(PrefixCache* prefixes, const std::string& key, const KvCachePolicy& policy,
                                      std::span<const int32_t> prompt, int64_t* diverges_at, int64_t most,
                                      PrefixCache::Lookup* lookup = nullptr);
  // Marks the sequence as one that runs with the state's pages (State::running).
  void run() { running_ = state_ == nullptr ? nullptr : state_->running; }
  // Says with which cache the sequence starts.
  void begin(const SequenceCache& cache);
  // Stores a fork of `cache`, which holds `tokens`. Claims this state unless one is claimed already, and calls run().
  // Only bytes that the cache has gained since begin() or the previous store() count as the state's own, and those of
  // its last page: a sequence that goes on from a state within a page does so in a copy.
  void store(PrefixCache* prefixes, const std::string& key, std::span<const int32_t> tokens, const SequenceCache& cache,
             const std::shared_ptr<Turn>& turn);
  void release() { *this = {}; }

 private:
  PrefixCache::Held state_;
  std::shared_ptr<const bool> running_;
  int64_t bytes_ = 0;  // that the cache shares with the state at which it began, or with the last one that it stored
};

}  // namespace smartkv
