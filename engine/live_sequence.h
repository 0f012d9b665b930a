// A snapshot of a running or waiting sequence, taken between two passes. It never contains text of the request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/sequence_cache.h"
#include "cache/tiers.h"

namespace smartkv {

struct LiveSequence {
  enum class State : uint8_t {
    kWaiting,  // holds no cache: not begun, or preempted
    kPrompt,   // its prompt is being computed, or its tokens are being recomputed
    kDecoding,
  };
  std::string id;      // GenerationRequest::id
  int32_t choice = 0;  // number of the choice, counted over all prompts of an HTTP request
  State state = State::kWaiting;
  std::string policy, speculation;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t computed_tokens = 0;  // prompt and output tokens that the cache holds
  int64_t preemptions = 0;      // of all choices of the request
  CacheStats cache;
  int64_t draft_bytes = 0;      // bytes of the cache that drafts are computed with
  TierShares tiers = {};        // tokens in each tier, mean over layers and KV heads
  std::vector<TierSpan> spans;  // spans of the layer that the caller asked for; empty if for none
};

constexpr int64_t kMostLiveSpans = 256;  // in LiveSequence::spans

}  // namespace smartkv
