// A request inside the engine: what was asked for, its sequences and its clock. Owned by the engine thread once queued.
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

// Why a request cannot go on.
struct Failure {
  FinishReason reason = FinishReason::kError;  // or kOutOfMemory, kLost
  std::string error;
};

// kOutOfMemory for std::bad_alloc, kLost for RankError.
Failure failure_of(const std::exception_ptr& exception);

struct Request {
  // `seed`: used when the request brings none. `eos`: the model's end-of-sequence tokens.
  Request(GenerationRequest generation, uint64_t id, const std::set<TokenId>& eos, const Tokenizer& tokenizer,
          int64_t context_length, std::shared_ptr<const KvCachePolicy> policy,
          std::shared_ptr<const Speculation> speculation, std::shared_ptr<const CompiledGrammar> grammar, uint64_t seed,
          std::shared_ptr<std::atomic<bool>> any_cancelled = nullptr);  // EventQueue's

  // Logits of the last prompt token are there: makes the other choices.
  void fork_choices(const Tokenizer& tokenizer);
  int64_t prompt_tokens() const { return static_cast<int64_t>(generation.prompt.size()); }
  bool offloads() const { return smartkv::offloads(speculation.get()); }  // its caches, not the draft's
  // Bytes of the host's memory that each choice may come to hold there.
  int64_t offload_bytes() const;
  // Bytes of KV cache that one choice may come to hold, drafts included, when it grows to n_tokens. Not what is offloaded.
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const;
  bool all_finished() const;
  RequestUsage usage(Clock::time_point now) const;

  GenerationRequest generation;       // sampling.logit_bias ascending by token
  uint64_t id;
  uint64_t seed;
  int64_t max_tokens;                 // what the context has room for at most
  std::vector<TokenId> stop_tokens;   // sorted
  std::shared_ptr<const KvCachePolicy> policy;
  std::shared_ptr<const Speculation> speculation;  // null: off
  std::shared_ptr<const CompiledGrammar> grammar;  // null: none
  PrefixCache* prefixes = nullptr;    // null: neither looks up nor leaves anything there
  std::string prefix_key;
  std::string draft_prefix_key;       // of the states of a mirrored draft's cache; empty: none
  size_t prefix_group = 0, draft_prefix_group = 0;  // PrefixCache::group_of() the prompt
  int64_t cached_tokens = 0;          // of the prompt, found there
  int64_t prompt_computed = 0;        // tokens of the prompt that some pass has computed, or that were found there
  bool looked_up = false, counted = false;  // there; among the queries of the prefix cache
  std::shared_ptr<EventQueue> events;
  std::vector<Sequence> choices;      // one until the prompt is computed; they stay where they are
  std::vector<TokenLogprob> prompt_logprobs;
  std::optional<Failure> failure;     // the request cannot go on
  bool ended = false;

  Clock::time_point submitted;
  std::optional<Clock::time_point> scheduled, first_token;
  double model_ms = 0, draft_ms = 0;
  int64_t prefill_chunks = 0, decode_passes = 0, preemptions = 0;
};

}  // namespace smartkv
