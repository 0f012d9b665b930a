// Turns the logits of a pass into tokens and text.
#pragma once

#include <optional>
#include <span>

#include "engine/engine.h"
#include "engine/request.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampler.h"

namespace smartkv {

// Adds its own lifetime to the choice's sampling time. `choice` outlives it.
class SampleTimer {
 public:
  explicit SampleTimer(Sequence* choice) : choice_(choice), start_(Clock::now()) {}
  ~SampleTimer() { choice_->sample_ms += milliseconds_since(start_); }
  SampleTimer(const SampleTimer&) = delete;
  SampleTimer& operator=(const SampleTimer&) = delete;

 private:
  Sequence* choice_;
  Clock::time_point start_;
};

// Scratch memory for sampling. Used by one thread at a time.
struct SamplingScratch {
  Sampler sampler;
  LogprobRow logprobs;
};

// Returns the token at output index `position` of a choice, sampled from `logits`, f32 [vocabulary]. The logits are
// those of the model, or of a model that drafts for it. Both sample with the same noise, so that the draft is the token
// that the model itself is most likely to choose. `history` covers all tokens before `position`. REQUIRES: the choice's
// constraint has accepted the same tokens. Throws SamplingError.
TokenId sample_at(const Request& request, Sequence* choice, int64_t position, const TokenHistory& history,
                  std::span<const float> logits, Sampler* sampler);

// Returns the input of the device sampler for the choice's next token, if Model::samples_tokens(). nullopt if the host
// needs the logits instead. REQUIRES: the pass ends with the choice's last token and has n_logits rows of logits for
// it. The result points into the request and the choice; it is valid until the choice advances. Throws what sample_at()
// throws.
std::optional<kernels::DeviceSample> draw_on_device(const Request& request, Sequence* choice, int64_t n_logits,
                                                    int64_t vocabulary);

// Samples the choice's next token and advances its text. While the sampled token equals the drafted one, the draft is
// accepted and the token after it is sampled, too. So the tokens are those of plain decoding, whatever was drafted.
//  - `logits` are f32 [1 + draft, row_stride]: a row for the last token and one for each drafted token. The first
//    `vocabulary` columns count.
//  - `drawn` replaces `logits` if the device sampler has filled it in (draw_on_device()); otherwise it is null.
//  - The event's `finish` says whether the choice has ended; `tokens` does not go beyond its end. If it continues,
//    choice->input holds the token that the next pass starts with.
//  - If the choice's grammar refuses the device sampler's token, the event has no tokens and choice->samples_on_host is
//    set. The row must then be computed again.
// Throws SamplingError. Thread-safe for different choices.
GenerationEvent sample_round(const Request& request, Sequence* choice, const float* logits, int64_t row_stride,
                             int64_t vocabulary, const kernels::DeviceSample* drawn, SamplingScratch* scratch);

// Adds to request->prompt_logprobs the log probability that each row of a prompt chunk gives to the token after it.
// Tokens that already have one are skipped. `logits` are f32 [n_rows, row_stride], for the prompt tokens from `first`
// on; the first `vocabulary` columns count. Throws SamplingError.
void add_prompt_logprobs(Request* request, int64_t first, const float* logits, int64_t n_rows, int64_t row_stride,
                         int64_t vocabulary, SamplingScratch* scratch);

}  // namespace smartkv
