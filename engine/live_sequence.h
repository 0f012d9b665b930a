// A sequence that the engine is working on or that waits for it, as it stood between two passes. Never its text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "cache/tiers.h"

namespace smartkv {

struct LiveSequence {
  enum class State : uint8_t {
    kWaiting,   // holds no cache: not begun, or dropped when memory ran out
    kPrompt,    // its prompt, or what it knew before it was dropped, is being computed
    kDecoding,
  };
  std::string id;      // of its request
  int32_t choice = 0;  // of its request, over all prompts
  State state = State::kWaiting;
  std::string policy, speculation;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t computed_tokens = 0;  // of both, in the cache
  int64_t preemptions = 0;      // of its request
  CacheStats cache;
  int64_t draft_bytes = 0;      // of the cache that drafts are computed with
  TierShares tiers = {};        // tokens, mean over layers and KV heads
  std::vector<TierSpan> spans;  // of the layer that was asked for
};

constexpr int64_t kMostLiveSpans = 256;

}  // namespace smartkv
