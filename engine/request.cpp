#include "engine/request.h"

#include <algorithm>
#include <utility>

#include "engine/sampling/random.h"

namespace smartkv {
namespace {

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

std::vector<TokenId> stop_tokens_of(const GenerationRequest& generation, const std::set<TokenId>& eos) {
  std::set<TokenId> tokens(generation.stop_token_ids.begin(), generation.stop_token_ids.end());
  if (!generation.ignore_eos) tokens.insert(eos.begin(), eos.end());
  return {tokens.begin(), tokens.end()};
}

}  // namespace

Choice::Choice(int32_t choice_index, const GenerationRequest& request, const Tokenizer& tokenizer)
    : index(choice_index), decoder(tokenizer, request.skip_special_tokens), stop(request.stop) {
  if (needs_history(request.sampling)) history = TokenHistory(request.prompt);
}

Request::Request(GenerationRequest generation_request, uint64_t request_id, const std::set<TokenId>& eos,
                 const Tokenizer& tokenizer, int64_t context_length, std::shared_ptr<const KvCachePolicy> kv_policy,
                 uint64_t default_seed)
    : generation(std::move(generation_request)),
      id(request_id),
      seed(generation.sampling.seed.value_or(default_seed)),
      max_tokens(std::min(generation.max_tokens, context_length - static_cast<int64_t>(generation.prompt.size()))),
      stop_tokens(stop_tokens_of(generation, eos)),
      policy(std::move(kv_policy)),
      events(std::make_shared<EventQueue>(generation.n)),
      submitted(Clock::now()) {
  choices.reserve(static_cast<size_t>(generation.n));
  choices.emplace_back(0, generation, tokenizer);
}

void Request::fork_choices(const Tokenizer& tokenizer) {
  for (int32_t i = 1; i < generation.n; ++i) {
    Choice choice(i, generation, tokenizer);
    choice.cache = choices[0].cache->fork();
    choices.push_back(std::move(choice));
  }
}

bool Request::all_finished() const {
  return static_cast<int32_t>(choices.size()) == generation.n &&
         std::all_of(choices.begin(), choices.end(), [](const Choice& choice) { return choice.finished; });
}

RequestUsage Request::usage(Clock::time_point now) const {
  RequestUsage usage;
  usage.prompt_tokens = static_cast<int64_t>(generation.prompt.size());
  usage.seed = seed;
  usage.kv_cache.policy = policy->name();
  for (const Choice& choice : choices) {
    usage.completion_tokens += choice.n_output;
    usage.kv_cache.tokens += choice.cache_stats.tokens;
    usage.kv_cache.tokens_kept += choice.cache_stats.tokens_kept;
    usage.kv_cache.bytes += choice.cache_stats.bytes;
    usage.kv_cache.full_bytes += choice.cache_stats.full_bytes;
  }
  RequestTimings& timings = usage.timings;
  const Clock::time_point start = scheduled.value_or(now), first = first_token.value_or(now);
  timings.queued_ms = milliseconds(start - submitted);
  timings.prefill_ms = milliseconds(first - start);
  timings.decode_ms = milliseconds(now - first);
  timings.total_ms = milliseconds(now - submitted);
  timings.model_ms = model_ms;
  timings.sample_ms = sample_ms;
  timings.prefill_chunks = prefill_chunks;
  timings.decode_passes = decode_passes;
  return usage;
}

GenerationEvent sample_next(const Request& request, Choice* choice, std::span<const float> logits,
                            SamplingScratch* scratch) {
  const GenerationRequest& generation = request.generation;
  const bool may_stop_now = choice->n_output >= generation.min_tokens;
  const std::span<const TokenId> forbidden =
      may_stop_now ? std::span<const TokenId>() : std::span<const TokenId>(request.stop_tokens);
  const Distribution& distribution =
      scratch->sampler.distribution(logits, {generation.sampling, choice->history, forbidden});
  const TokenId token = distribution.draw(
      uniform(request.seed, static_cast<uint32_t>(choice->index), static_cast<uint64_t>(choice->n_output)));

  GenerationEvent event;
  event.choice = choice->index;
  event.tokens.push_back(token);
  if (generation.logprobs >= 0) {
    scratch->logprobs.assign(logits);
    event.logprobs.push_back(scratch->logprobs.of(token, generation.logprobs));
  }
  ++choice->n_output;
  choice->input.assign(1, token);
  if (needs_history(generation.sampling)) choice->history.add_output(token);

  const bool stop_token = std::binary_search(request.stop_tokens.begin(), request.stop_tokens.end(), token);
  std::string text = stop_token ? std::string() : choice->decoder.push(token);
  if (stop_token) {
    event.finish = FinishReason::kStop;
  } else if (choice->n_output >= request.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  if (event.finish != FinishReason::kNone) text += choice->decoder.flush();
  if (choice->n_output < generation.min_tokens) {  // stop strings count from the token on that may end the text
    event.text = std::move(text);
    return event;
  }
  event.text = choice->stop.push(text);
  if (choice->stop.matched()) {
    event.finish = FinishReason::kStop;
    event.stop_string = choice->stop.matched();
  } else if (event.finish != FinishReason::kNone) {
    event.text += choice->stop.flush();
  }
  return event;
}

void add_prompt_logprobs(Request* request, const float* logits, int64_t n_rows, int64_t row_stride, int64_t vocabulary,
                         SamplingScratch* scratch) {
  const std::vector<TokenId>& prompt = request->generation.prompt;
  for (int64_t row = 0; row < n_rows; ++row) {
    const auto next = static_cast<size_t>(request->computed + row + 1);
    if (next >= prompt.size()) break;
    scratch->logprobs.assign({logits + row * row_stride, static_cast<size_t>(vocabulary)});
    request->prompt_logprobs.push_back(scratch->logprobs.of(prompt[next], request->generation.prompt_logprobs));
  }
}

}  // namespace smartkv
