// A request inside the engine: its choices, from tokens to text, and its clock. Owned by the engine thread once queued.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "cache/prefix_cache.h"
#include "cache/sequence_cache.h"
#include "engine/engine.h"
#include "engine/event_queue.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/stop_strings.h"
#include "engine/sampling/token_history.h"
#include "engine/scheduler.h"
#include "engine/speculation/draft_sequence.h"

namespace smartkv {

using Clock = std::chrono::steady_clock;

struct Request;

// One sequence being generated: its tokens, its caches, how its next token is drawn, and its text. It may lose its caches
// at any time between two passes and compute them anew: nothing that is sampled depends on it.
struct Choice final : ScheduledSequence {
  // `request` outlives it. It knows the request's prompt.
  Choice(Request* request, int32_t index, const Tokenizer& tokenizer);
  // Another choice of the same request, whose prompt was just computed: with a fork of its caches.
  void fork_from(const Choice& other);

  int64_t computed() const override;
  int64_t left() const override { return static_cast<int64_t>(tokens.size()) - computed(); }
  int64_t pass_limit() const override;
  int64_t growth(int64_t n) const override;
  int64_t held() const override { return cache_stats.bytes + draft_bytes; }
  int64_t bytes_ahead(int64_t beyond) const override;
  void begin() override;  // from a state of the prefix cache, if there is one
  void drop() override;

  // Computes its prompt, or after it lost its caches what it knew.
  // Whether other prompts may go on from what the cache holds now.
  bool leaves_prefix() const;
  bool computes_prompt() const { return n_output == 0 || left() > 1; }
  // What the model's passes fill: the cache, or with it the cache of a model that drafts for itself.
  SequenceCache* pass_cache() const { return draft != nullptr && draft->mirror() != nullptr ? draft->mirror() : cache.get(); }
  void read_stats();   // of the caches, after a pass
  void free_caches();  // what they held last is still told
  void finish();

  Request* request;
  int32_t index;
  std::vector<TokenId> tokens;           // known: prompt and output
  std::unique_ptr<SequenceCache> cache;  // null while it waits, and once finished
  std::unique_ptr<DraftSequence> draft;  // null: plain decoding, or no cache
  CacheStats cache_stats;                // after the last pass
  std::map<std::string, double> cache_details;  // once finished
  int64_t draft_bytes = 0;               // of the draft's cache, after the last pass
  int64_t prefix_bytes = 0;              // of the state that the cache went on from
  int64_t parts_at = 0;                  // tokens after which its prompt parts from those that are known: 0: nowhere
  SpeculationUsage speculation;          // after the last pass
  std::vector<TokenId> input;            // what the next pass carries when it decodes: its last token, then its draft
  int64_t n_output = 0;
  bool finished = false;
  double sample_ms = 0;
  Clock::time_point last_token;
  TokenHistory history;
  StreamDecoder decoder;
  StopMatcher stop;
};

struct Request {
  // `seed`: used when the request brings none. `eos`: the model's end-of-sequence tokens.
  Request(GenerationRequest generation, uint64_t id, const std::set<TokenId>& eos, const Tokenizer& tokenizer,
          int64_t context_length, std::shared_ptr<const KvCachePolicy> policy,
          std::shared_ptr<const Speculation> speculation, uint64_t seed);

  // Logits of the last prompt token are there: makes the other choices.
  void fork_choices(const Tokenizer& tokenizer);
  int64_t prompt_tokens() const { return static_cast<int64_t>(generation.prompt.size()); }
  // Bytes of KV cache that one choice may come to hold, drafts included, when it grows to n_tokens.
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const;
  bool all_finished() const;
  RequestUsage usage(Clock::time_point now) const;

  GenerationRequest generation;
  uint64_t id;
  uint64_t seed;
  int64_t max_tokens;                 // what the context has room for at most
  std::vector<TokenId> stop_tokens;   // sorted
  std::shared_ptr<const KvCachePolicy> policy;
  std::shared_ptr<const Speculation> speculation;  // null: off
  PrefixCache* prefixes = nullptr;    // null: neither looks up nor leaves anything there
  std::string prefix_key;
  int64_t cached_tokens = 0;          // of the prompt, found there
  bool looked_up = false;
  std::shared_ptr<EventQueue> events;
  std::vector<Choice> choices;        // one until the prompt is computed; they stay where they are
  std::vector<TokenLogprob> prompt_logprobs;
  std::string failure;                // not empty: the request cannot go on
  bool ended = false;

  Clock::time_point submitted;
  std::optional<Clock::time_point> scheduled, first_token;
  double model_ms = 0, draft_ms = 0;
  int64_t prefill_chunks = 0, decode_passes = 0, preemptions = 0;
};

// Adds its own lifetime to the choice's sampling time.
class SampleTimer {
 public:
  explicit SampleTimer(Choice* choice) : choice_(choice), start_(Clock::now()) {}
  ~SampleTimer() { choice_->sample_ms += std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }
  SampleTimer(const SampleTimer&) = delete;
  SampleTimer& operator=(const SampleTimer&) = delete;

 private:
  Choice* choice_;
  Clock::time_point start_;
};

// Scratch for turning logits into tokens: of one thread at a time.
struct SamplingScratch {
  Sampler sampler;
  LogprobRow logprobs;
};

// The token at output index `position` of a choice by the logits of its model, or of a model that drafts for it: both
// draw with the same noise, so that a draft is what the model itself is most likely to say. history: of all tokens
// before it. Throws SamplingError.
TokenId sample_at(const Request& request, const Choice& choice, int64_t position, const TokenHistory& history,
                  std::span<const float> logits, Sampler* sampler);

// Samples the choice's next token and advances its text; as long as that is the drafted one, the token after it, too. So
// the tokens are plain decoding's, whatever was drafted. logits: f32 [1 + draft, row_stride], of the last token and the
// drafted ones; the first `vocabulary` count. The event's `finish` tells whether the choice has ended, and `tokens` goes
// no further than that; otherwise choice->input is what the next pass carries. Throws SamplingError. Thread-safe for
// different choices.
GenerationEvent sample_round(const Request& request, Choice* choice, const float* logits, int64_t row_stride,
                             int64_t vocabulary, SamplingScratch* scratch);

// Adds the log probabilities that a prompt chunk's rows give to the tokens after them, but for those that are known.
// logits: f32 [n_rows, row_stride], of the prompt tokens from `first` on; the first `vocabulary` count.
void add_prompt_logprobs(Request* request, int64_t first, const float* logits, int64_t n_rows, int64_t row_stride,
                         int64_t vocabulary, SamplingScratch* scratch);

}  // namespace smartkv
