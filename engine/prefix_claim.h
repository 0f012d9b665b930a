// A sequence's hold on one state of the prefix cache: the state from which its cache will resume or has resumed, or the
// first one that it stored. The cache of a mirrored draft has a claim of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "cache/prefix_cache.h"

namespace smartkv {

class PrefixClaim {
 public:
  const PrefixCache::Held& state() const { return state_; }  // null if there is none
  // Number of running sequences that use the state's pages.
  int64_t sharers() const { return state_ == nullptr ? 0 : state_->running.use_count() - 1; }

  // Claims a state for a sequence that waits. May be null.
  void claim(PrefixCache::Held state) { state_ = std::move(state); }
  // Finds a cache for the prompt, as PrefixCache::find() does, and claims its state.
  std::unique_ptr<SequenceCache> find(PrefixCache* prefixes, const std::string& key, const KvCachePolicy& policy,
                                      std::span<const int32_t> prompt, int64_t* parts_at, int64_t most);
  // Holds State::running from now on: the sequence runs with the state's pages.
  void run() { running_ = state_ == nullptr ? nullptr : state_->running; }
  // The cache holds `bytes` now. The next state that it stores counts only the bytes beyond these.
  void begin(int64_t bytes) { bytes_ = bytes; }
  // Stores a fork of `cache`, which holds `tokens`, and claims it unless a state is claimed already.
  void store(PrefixCache* prefixes, const std::string& key, std::span<const int32_t> tokens, const SequenceCache& cache);
  void release();

 private:
  PrefixCache::Held state_;
  std::shared_ptr<const bool> running_;
  int64_t bytes_ = 0;  // of the cache when it began or last stored a state
};

}  // namespace smartkv
