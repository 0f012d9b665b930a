// A request inside the engine: its choices, from tokens to text, and its clock. Owned by the engine thread once queued.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "cache/sequence_cache.h"
#include "engine/engine.h"
#include "engine/event_queue.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/stop_strings.h"
#include "engine/sampling/token_history.h"
#include "engine/speculation/draft_sequence.h"

namespace smartkv {

using Clock = std::chrono::steady_clock;

// One sequence being generated.
struct Choice {
  Choice(int32_t choice_index, const GenerationRequest& request, const Tokenizer& tokenizer);
  // What the model's passes fill: the cache, or with it the cache of a model that drafts for itself.
  SequenceCache* pass_cache() { return draft != nullptr && draft->mirror() != nullptr ? draft->mirror() : cache.get(); }

  int32_t index;
  std::unique_ptr<SequenceCache> cache;  // null before the first pass and once finished
  std::unique_ptr<DraftSequence> draft;  // null: plain decoding, or no cache
  CacheStats cache_stats;                // after the last pass
  std::map<std::string, double> cache_details;  // once finished
  int64_t draft_bytes = 0;               // of the draft's cache, after the last pass
  SpeculationUsage speculation;          // after the last pass
  std::vector<TokenId> input;            // what the next pass carries: the token sampled last, then its draft
  int64_t n_output = 0;
  bool finished = false;
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

  // Makes the first choice's caches. Throws CacheError.
  void make_caches();
  // Logits of the last prompt token are there: makes the other choices.
  void fork_choices(const Tokenizer& tokenizer);
  bool all_finished() const;
  RequestUsage usage(Clock::time_point now) const;

  GenerationRequest generation;
  uint64_t id;
  uint64_t seed;
  int64_t max_tokens;                 // what the context has room for at most
  std::vector<TokenId> stop_tokens;   // sorted
  std::shared_ptr<const KvCachePolicy> policy;
  std::shared_ptr<const Speculation> speculation;  // null: off
  std::shared_ptr<EventQueue> events;
  std::vector<Choice> choices;        // one until the prompt is computed
  int64_t computed = 0;               // prompt tokens
  std::vector<TokenLogprob> prompt_logprobs;
  std::string failure;                // not empty: the request cannot go on
  bool ended = false;

  Clock::time_point submitted;
  std::optional<Clock::time_point> scheduled, first_token;
  double model_ms = 0, draft_ms = 0, sample_ms = 0;
  int64_t prefill_chunks = 0, decode_passes = 0;
};

// Adds its own lifetime to the request's sampling time.
class SampleTimer {
 public:
  explicit SampleTimer(Request* request) : request_(request), start_(Clock::now()) {}
  ~SampleTimer() { request_->sample_ms += std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }
  SampleTimer(const SampleTimer&) = delete;
  SampleTimer& operator=(const SampleTimer&) = delete;

 private:
  Request* request_;
  Clock::time_point start_;
};

// Scratch for turning logits into tokens, shared by all requests.
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
// no further than that; otherwise choice->input is what the next pass carries. Throws SamplingError.
GenerationEvent sample_round(const Request& request, Choice* choice, const float* logits, int64_t row_stride,
                             int64_t vocabulary, SamplingScratch* scratch);

// Appends the log probabilities that a prompt chunk's rows give to the tokens after them.
// logits: f32 [n_rows, row_stride], of the prompt tokens from request->computed on; the first `vocabulary` count.
void add_prompt_logprobs(Request* request, const float* logits, int64_t n_rows, int64_t row_stride, int64_t vocabulary,
                         SamplingScratch* scratch);

}  // namespace smartkv
