#include "server/openai/generation_run.h"

#include <algorithm>

namespace smartkv::openai {

using std::chrono::milliseconds;

GenerationRun::GenerationRun(Engine& engine, const ApiRequest& request, const std::function<bool()>& client_gone,
                             const std::string& owner, int64_t owner_kv_bytes)
    : choices_per_prompt_(request.generations.front().n) {
  std::vector<GenerationRequest> generations = request.generations;
  for (GenerationRequest& generation : generations) {
    generation.client_gone = client_gone;
    generation.owner = owner;
    generation.owner_kv_bytes = owner_kv_bytes;
  }
  try {
    streams_ = engine.submit_all(std::move(generations));
  } catch (const RequestError& error) {
    const bool format = error.param == "grammar" && !request.format_field.empty();
    throw to_api_error(format ? RequestError(error.kind, request.format_field, error.what()) : error);
  }
  ended_.assign(streams_.size(), false);
}

GenerationRun::Status GenerationRun::next(GenerationEvent* event, milliseconds most_wait) {
  // Polls each stream once. If none has an event, waits for the next stream in turn.
  for (size_t looked = 0; looked <= streams_.size(); ++looked) {
    size_t live = turn_;
    size_t skipped = 0;
    while (skipped < streams_.size() && ended_[live]) {
      live = (live + 1) % streams_.size();
      ++skipped;
    }
    if (skipped == streams_.size()) return Status::kEnd;
    turn_ = (live + 1) % streams_.size();
    const milliseconds wait = looked < streams_.size() && streams_.size() > 1 ? milliseconds(0) : most_wait;
    *event = GenerationEvent();
    switch (streams_[live]->next(event, wait)) {
      case GenerationStream::Status::kEvent:
        event->choice += static_cast<int32_t>(live) * choices_per_prompt_;
        return Status::kEvent;
      case GenerationStream::Status::kEnd: ended_[live] = true; break;
      case GenerationStream::Status::kTimeout:
        if (streams_.size() == 1) return Status::kTimeout;
        break;
    }
  }
  return std::all_of(ended_.begin(), ended_.end(), [](bool ended) { return ended; }) ? Status::kEnd : Status::kTimeout;
}

const std::vector<TokenLogprob>& GenerationRun::prompt_logprobs(int32_t choice) const {
  return streams_.at(static_cast<size_t>(choice / choices_per_prompt_))->prompt_logprobs();
}

RequestUsage GenerationRun::usage() const {
  RequestUsage total = streams_.front()->usage();
  for (size_t i = 1; i < streams_.size(); ++i) {
    const RequestUsage one = streams_[i]->usage();
    total.prompt_tokens += one.prompt_tokens;
    total.cached_tokens += one.cached_tokens;
    total.completion_tokens += one.completion_tokens;
    total.reasoning_tokens += one.reasoning_tokens;
    total.kv_cache.tokens += one.kv_cache.tokens;
    total.kv_cache.tokens_kept += one.kv_cache.tokens_kept;
    total.kv_cache.bytes += one.kv_cache.bytes;
    total.kv_cache.shared_bytes += one.kv_cache.shared_bytes;
    total.kv_cache.full_bytes += one.kv_cache.full_bytes;
    total.kv_cache.tiers += one.kv_cache.tiers;
    total.speculation.add(one.speculation);
    RequestTimings& sum = total.timings;
    sum.preemptions += one.timings.preemptions;
    sum.preempted_ms += one.timings.preempted_ms;
    sum.recomputed_tokens += one.timings.recomputed_tokens;
    if (one.timings.total_ms > sum.total_ms) {
      sum.queued_ms = one.timings.queued_ms;
      sum.prefill_ms = one.timings.prefill_ms;
      sum.decode_ms = one.timings.decode_ms;
      sum.total_ms = one.timings.total_ms;
      sum.model_ms = one.timings.model_ms;
    }
    sum.sample_ms += one.timings.sample_ms;
    sum.prefill_chunks += one.timings.prefill_chunks;
    sum.decode_passes += one.timings.decode_passes;
  }
  return total;
}

}  // namespace smartkv::openai
