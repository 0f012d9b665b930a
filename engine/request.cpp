#include "engine/request.h"

#include <algorithm>
#include <new>

#include "engine/parallel/rank_group.h"

namespace smartkv {
namespace {

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

std::vector<TokenId> stop_tokens_of(const GenerationRequest& generation, const std::set<TokenId>& eos) {
  std::set<TokenId> tokens(generation.stop_token_ids.begin(), generation.stop_token_ids.end());
  if (!generation.ignore_eos || !generation.grammar.empty()) tokens.insert(eos.begin(), eos.end());
  return {tokens.begin(), tokens.end()};
}

}  // namespace

Failure failure_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::bad_alloc&) {
    return {FinishReason::kOutOfMemory, kNoMemory};
  } catch (const RankError& error) {
    return {FinishReason::kLost, error.what()};
  } catch (const std::exception& error) {
    return {FinishReason::kError, error.what()};
  } catch (...) {
    return {FinishReason::kError, "unknown exception"};
  }
}

Request::Request(GenerationRequest generation_request, RequestObjects objects, const std::set<TokenId>& eos,
                 const Tokenizer& tokenizer, int64_t context_length, uint64_t default_seed,
                 std::shared_ptr<std::atomic<bool>> any_cancelled)
    : RequestObjects(std::move(objects)),
      generation(std::move(generation_request)),
      seed(generation.sampling.seed.value_or(default_seed)),
      max_tokens(std::min(generation.max_tokens, context_length - static_cast<int64_t>(generation.prompt.size()))),
      stop_tokens(stop_tokens_of(generation, eos)),
      events(std::make_shared<EventQueue>(generation.n, std::move(any_cancelled))),
      submitted(Clock::now()) {
  std::stable_sort(generation.sampling.logit_bias.begin(), generation.sampling.logit_bias.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  choices.reserve(static_cast<size_t>(generation.n));
  choices.emplace_back(this, 0, tokenizer);
}

void Request::fork_choices(const Tokenizer& tokenizer) {
  for (int32_t i = 1; i < generation.n; ++i) choices.emplace_back(this, i, tokenizer).fork_from(choices[0]);
}

int64_t Request::max_bytes(int64_t n_prompt, int64_t n_tokens) const {
  return most_cache_bytes(*policy, speculation == nullptr ? nullptr : speculation->policy.get(), offloads(), n_prompt,
                          n_tokens);
}

int64_t Request::offload_bytes() const {
  return offloads() ? policy->max_bytes(prompt_tokens(), prompt_tokens() + max_tokens) : 0;
}

bool Request::all_finished() const {
  return static_cast<int32_t>(choices.size()) == generation.n &&
         std::all_of(choices.begin(), choices.end(), [](const Sequence& choice) { return choice.finished; });
}

RequestTimings Request::timings(Clock::time_point now) const {
  RequestTimings timings;
  const Clock::time_point start = scheduled.value_or(now), first = first_token.value_or(now);
  timings.queued_ms = milliseconds(start - submitted);
  timings.prefill_ms = milliseconds(first - start);
  timings.decode_ms = milliseconds(now - first);
  timings.total_ms = milliseconds(now - submitted);
  timings.model_ms = model_ms;
  for (const Sequence& choice : choices) timings.sample_ms += choice.sample_ms;
  timings.prefill_chunks = prefill_chunks;
  timings.decode_passes = decode_passes;
  timings.preemptions = preemptions;
  timings.preempted_ms = preempted_ms;
  timings.recomputed_tokens = recomputed_tokens;
  return timings;
}

RequestUsage Request::usage(Clock::time_point now) const {
  RequestUsage usage;
  usage.prompt_tokens = static_cast<int64_t>(generation.prompt.size());
  usage.cached_tokens = cached_tokens;
  if (prefixes != nullptr && lookup.turn != nullptr) {
    usage.prefix_miss = PrefixCache::kMissNames[static_cast<size_t>(lookup.miss)];
    usage.diverged_at = std::max(lookup.common, cached_tokens);
    const auto message = std::ranges::upper_bound(generation.message_starts, usage.diverged_at);
    usage.diverged_message = message - generation.message_starts.begin() - 1;
  }
  usage.seed = seed;
  usage.kv_cache.policy = policy->name();
  usage.kv_cache.spec = policy->spec();
  usage.kv_cache.stand_in = policy->stand_in();
  usage.kv_cache.promise = policy->promise();
  if (speculation != nullptr) {
    usage.speculation.method = name(speculation->spec.method);
    usage.speculation.exact = speculation->exact;
  }
  usage.speculation.draft_ms = draft_ms;
  usage.timings = timings(now);
  for (const Sequence& choice : choices) {
    usage.speculation.add(choice.speculation);
    usage.completion_tokens += choice.n_output;
    if (choice.constraint != nullptr) usage.reasoning_tokens += choice.constraint->reasoning_tokens();
    usage.kv_cache.tokens += choice.cache_stats.tokens;
    usage.kv_cache.tokens_kept += choice.cache_stats.tokens_kept;
    usage.kv_cache.bytes += choice.cache_stats.bytes;
    usage.kv_cache.shared_bytes += choice.cache_stats.shared_bytes;
    usage.kv_cache.full_bytes += choice.cache_stats.full_bytes;
    usage.kv_cache.tiers += choice.cache_tiers;
    if (!choice.cache_details.empty()) usage.kv_cache.details = choice.cache_details;
  }
  return usage;
}

}  // namespace smartkv
