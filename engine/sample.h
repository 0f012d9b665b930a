// From a pass's logits to tokens and text.
#pragma once

#include <chrono>
#include <optional>
#include <span>

#include "engine/engine.h"
#include "engine/request.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampler.h"

namespace smartkv {

// Adds its own lifetime to the choice's sampling time.
class SampleTimer {
 public:
  explicit SampleTimer(Sequence* choice) : choice_(choice), start_(Clock::now()) {}
  ~SampleTimer() { choice_->sample_ms += std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }
  SampleTimer(const SampleTimer&) = delete;
  SampleTimer& operator=(const SampleTimer&) = delete;

 private:
  Sequence* choice_;
  Clock::time_point start_;
};

// Scratch for turning logits into tokens: of one thread at a time.
struct SamplingScratch {
  Sampler sampler;
  LogprobRow logprobs;
};

// The token at output index `position` of a choice by the logits of its model, or of a model that drafts for it: both
// draw with the same noise, so that a draft is what the model itself is most likely to say. history: of all tokens
// before it, after which the choice's constraint stands, too. Throws SamplingError.
TokenId sample_at(const Request& request, Sequence* choice, int64_t position, const TokenHistory& history,
                  std::span<const float> logits, Sampler* sampler);

// The same for a model that draws_tokens(), where a pass of n_logits rows ends with the choice's last token; nullopt: the host
// needs the logits. What it points to is the choice's, until that goes on. May throw what sample_at() throws.
std::optional<kernels::TokenDraw> draw_on_device(const Request& request, Sequence* choice, int64_t n_logits, int64_t vocabulary);

// Samples the choice's next token and advances its text; as long as that is the drafted one, the token after it, too. So
// the tokens are plain decoding's, whatever was drafted. logits: f32 [1 + draft, row_stride], of the last token and the
// drafted ones; the first `vocabulary` count. drawn: draw_on_device()'s, which the model has drawn, in place of logits; null: there
// is none. The event's `finish` tells whether the choice has ended, and `tokens` goes no further than that; otherwise
// choice->input is what the next pass carries. No tokens: the choice's grammar refuses the one that the model has drawn, and
// choice->draws_again is set; the row must be computed again. Throws SamplingError. Thread-safe for different choices.
GenerationEvent sample_round(const Request& request, Sequence* choice, const float* logits, int64_t row_stride,
                             int64_t vocabulary, const kernels::TokenDraw* drawn, SamplingScratch* scratch);

// Adds the log probabilities that a prompt chunk's rows give to the tokens after them, but for those that are known.
// logits: f32 [n_rows, row_stride], of the prompt tokens from `first` on; the first `vocabulary` count.
void add_prompt_logprobs(Request* request, int64_t first, const float* logits, int64_t n_rows, int64_t row_stride,
                         int64_t vocabulary, SamplingScratch* scratch);

}  // namespace smartkv
