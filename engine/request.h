// A request inside the engine: the client's parameters, its sequences and its timings. Once it is queued, the engine
// thread owns it.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "cache/prefix_cache.h"
#include "engine/engine.h"
#include "engine/event_queue.h"
#include "engine/sequence.h"

namespace smartkv {

// Why a request cannot continue.
struct Failure {
  FinishReason reason = FinishReason::kError;  // kError, kOutOfMemory or kLost
  std::string error;
};

constexpr const char* kNoMemory = "the machine has no memory left for the request";

// Returns the failure that an exception stands for: kOutOfMemory for std::bad_alloc, kLost for RankError, else kError.
Failure failure_of(const std::exception_ptr& exception);

// The objects that a request's fields name. Requests with equal fields share them.
struct RequestObjects {
  std::shared_ptr<const KvCachePolicy> policy;
  std::shared_ptr<const Speculation> speculation;  // null if off
  std::shared_ptr<const CompiledGrammar> grammar;  // null if the output may be any text
};

struct Request : RequestObjects {
  // `eos` are the model's end-of-sequence tokens. `seed` is used if the request has none. `any_cancelled` is as for
  // EventQueue. `tokenizer` outlives the request.
  Request(GenerationRequest generation, RequestObjects objects, const std::set<TokenId>& eos,
          const Tokenizer& tokenizer, int64_t context_length, uint64_t seed,
          std::shared_ptr<std::atomic<bool>> any_cancelled = nullptr);

  // Makes the other choices as forks of the first one. REQUIRES: the first choice has just computed the last prompt
  // token.
  void fork_choices(const Tokenizer& tokenizer);
  int64_t prompt_tokens() const { return static_cast<int64_t>(generation.prompt.size()); }
  // Returns whether the choices' own caches, as opposed to the draft's, are in the host's memory.
  bool offloads() const { return smartkv::offloads(speculation.get()); }
  // Returns the most bytes of the host's memory that each choice may come to hold. 0 if it does not offload.
  int64_t offload_bytes() const;
  // Returns the most bytes of KV cache that one choice may hold while it grows to n_tokens, drafts included. Offloaded
  // memory does not count.
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const;
  bool all_finished() const;
  // Return the timings and the whole usage until `now`. timings() allocates no memory.
  RequestTimings timings(Clock::time_point now) const;
  RequestUsage usage(Clock::time_point now) const;

  GenerationRequest generation;  // sampling.logit_bias ascending by token
  uint64_t id = 0;               // set when the request is queued; lower ones are older
  uint64_t seed;
  int64_t max_tokens;                // generation.max_tokens, or fewer if the context ends before
  std::vector<TokenId> stop_tokens;  // sorted
  PrefixCache* prefixes = nullptr;   // the engine's; null if the request neither uses nor leaves states
  std::string prefix_key;            // key in `prefixes`: the policy and the cache_salt
  std::string draft_prefix_key;      // key for states of a mirrored draft's cache; empty if there are none
  size_t prefix_group = 0, draft_prefix_group = 0;  // PrefixCache::group_of() of the two keys and the prompt
  PrefixCache::Lookup lookup;
  int64_t cached_tokens = 0;    // prompt tokens that were a prefix hit when the request first began
  int64_t prompt_computed = 0;  // prompt tokens that a prefix hit covered or a pass has computed
  // looked_up: cached_tokens is known. counted: the request is part of the prefix cache's query and hit counters.
  bool looked_up = false, counted = false;
  std::shared_ptr<EventQueue> events;
  std::vector<Sequence> choices;  // only the first one until the prompt is computed; their addresses never change
  std::vector<TokenLogprob> prompt_logprobs;
  std::optional<Failure> failure;  // set if the request has to end for a failure
  bool finish_counted = false;     // whether it is part of EngineStats::finished
  bool ended = false;

  Clock::time_point submitted;
  std::optional<Clock::time_point> scheduled, first_token;
  double model_ms = 0, draft_ms = 0, preempted_ms = 0;
  int64_t prefill_chunks = 0, decode_passes = 0, preemptions = 0, recomputed_tokens = 0;
};

}  // namespace smartkv
