#include "engine/request.h"

#include <algorithm>
#include <utility>

#include "engine/sampling/token_noise.h"

namespace smartkv {
namespace {

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

std::vector<TokenId> stop_tokens_of(const GenerationRequest& generation, const std::set<TokenId>& eos) {
  std::set<TokenId> tokens(generation.stop_token_ids.begin(), generation.stop_token_ids.end());
  if (!generation.ignore_eos) tokens.insert(eos.begin(), eos.end());
  return {tokens.begin(), tokens.end()};
}

}  // namespace

// Prompts from this length on get a pass of their own for the probes at their end, so that others can go on from before it.
constexpr int64_t kLeastPartedPrompt = 256;

// Tokens that a state at a place where prompts part must spare the next prompt: a pass of its own ends there.
constexpr int64_t kWorthAState = 128;

// Tokens of a pass that wants a row of logits for each: bounds their memory.
constexpr int64_t kLogprobChunk = 64;

Choice::Choice(Request* owner, int32_t choice_index, const Tokenizer& tokenizer)
    : request(owner),
      index(choice_index),
      tokens(owner->generation.prompt),
      decoder(tokenizer, owner->generation.skip_special_tokens),
      stop(owner->generation.stop) {
  if (needs_history(owner->generation.sampling)) history = TokenHistory(owner->generation.prompt);
}

void Choice::fork_from(const Choice& other) {
  cache = other.cache->fork();
  if (other.draft != nullptr) draft = other.draft->fork(cache.get());
  read_stats();
}

int64_t Choice::computed() const { return cache == nullptr ? 0 : cache->tokens(); }

int64_t Choice::pass_limit() const {
  int64_t limit = std::max<int64_t>(1, pass_cache()->next_boundary() - computed());
  if (request->generation.prompt_logprobs >= 0) limit = std::min(limit, kLogprobChunk);
  if (parts_at > computed()) limit = std::min(limit, parts_at - computed());
  // What a cache has observed stays when it is cut back: a state for other prompts is one before the probes at the end.
  const int64_t prompt_left = request->prompt_tokens() - computed();
  if (request->prefixes == nullptr || prompt_left <= 0 || prompt_left > limit) return limit;
  const TokenRange probes = cache->probes(prompt_left);
  const bool parts = !probes.empty() && probes.first > computed() && probes.first >= kLeastPartedPrompt;
  return parts ? probes.first - computed() : limit;
}

bool Choice::leaves_prefix() const {
  if (request->prefixes == nullptr || computed() < PrefixCache::kLeastTokens) return false;
  const int64_t left = request->prompt_tokens() - computed();
  if (left <= 0 || computed() == parts_at) return left >= 0;
  const TokenRange probes = cache->probes(left);
  return !probes.empty() && probes.first == computed();
}

int64_t Choice::growth(int64_t n) const {
  return cache->growth(n) + (draft == nullptr || draft->cache() == nullptr ? 0 : draft->cache()->growth(n));
}

int64_t Choice::bytes_ahead(int64_t beyond) const {
  const int64_t most = request->prompt_tokens() + request->max_tokens;
  const int64_t prompt_left = computed() < request->prompt_tokens() ? request->prompt_tokens() : 0;
  return request->max_bytes(prompt_left, std::min(static_cast<int64_t>(tokens.size()) + beyond, most));
}

void Choice::begin() {
  cache = nullptr;
  parts_at = 0;
  if (request->prefixes != nullptr) {
    cache = request->prefixes->find(request->prefix_key, request->generation.prompt, &parts_at);
    if (parts_at < computed() + kWorthAState) parts_at = 0;
  }
  if (!request->looked_up) request->cached_tokens = computed();
  request->looked_up = true;
  if (cache == nullptr) cache = request->policy->new_sequence(request->prompt_tokens());
  cache_stats = cache->stats();
  prefix_bytes = cache_stats.bytes;
  if (request->speculation == nullptr || request->max_tokens <= 1) return;
  draft = std::make_unique<DraftSequence>(request->speculation, tokens, cache.get());
  draft->usage = speculation;
}

void Choice::drop() {
  free_caches();
  cache_stats = {};
  draft_bytes = 0;
}

void Choice::free_caches() {
  draft.reset();  // looks into the cache
  cache.reset();
}

void Choice::finish() {
  free_caches();
  finished = true;
}

void Choice::read_stats() {
  cache_stats = cache->stats();
  if (draft == nullptr) return;
  speculation = draft->usage;
  draft_bytes = draft->cache() == nullptr ? 0 : draft->cache()->stats().bytes;
}

Request::Request(GenerationRequest generation_request, uint64_t request_id, const std::set<TokenId>& eos,
                 const Tokenizer& tokenizer, int64_t context_length, std::shared_ptr<const KvCachePolicy> kv_policy,
                 std::shared_ptr<const Speculation> draft_method, uint64_t default_seed)
    : generation(std::move(generation_request)),
      id(request_id),
      seed(generation.sampling.seed.value_or(default_seed)),
      max_tokens(std::min(generation.max_tokens, context_length - static_cast<int64_t>(generation.prompt.size()))),
      stop_tokens(stop_tokens_of(generation, eos)),
      policy(std::move(kv_policy)),
      speculation(std::move(draft_method)),
      events(std::make_shared<EventQueue>(generation.n)),
      submitted(Clock::now()) {
  choices.reserve(static_cast<size_t>(generation.n));
  choices.emplace_back(this, 0, tokenizer);
}

void Request::fork_choices(const Tokenizer& tokenizer) {
  for (int32_t i = 1; i < generation.n; ++i) choices.emplace_back(this, i, tokenizer).fork_from(choices[0]);
}

int64_t Request::max_bytes(int64_t n_prompt, int64_t n_tokens) const {
  int64_t bytes = policy->max_bytes(n_prompt, n_tokens);
  if (speculation != nullptr && speculation->policy != nullptr) bytes += speculation->policy->max_bytes(n_prompt, n_tokens);
  return bytes;
}

bool Request::all_finished() const {
  return static_cast<int32_t>(choices.size()) == generation.n &&
         std::all_of(choices.begin(), choices.end(), [](const Choice& choice) { return choice.finished; });
}

RequestUsage Request::usage(Clock::time_point now) const {
  RequestUsage usage;
  usage.prompt_tokens = static_cast<int64_t>(generation.prompt.size());
  usage.cached_tokens = cached_tokens;
  usage.seed = seed;
  usage.kv_cache.policy = policy->name();
  if (speculation != nullptr) usage.speculation.method = name(speculation->spec.method);
  usage.speculation.draft_ms = draft_ms;
  RequestTimings& timings = usage.timings;
  for (const Choice& choice : choices) {
    timings.sample_ms += choice.sample_ms;
    usage.speculation.add(choice.speculation);
    usage.completion_tokens += choice.n_output;
    usage.kv_cache.tokens += choice.cache_stats.tokens;
    usage.kv_cache.tokens_kept += choice.cache_stats.tokens_kept;
    usage.kv_cache.bytes += choice.cache_stats.bytes;
    usage.kv_cache.shared_bytes += choice.cache_stats.shared_bytes;
    usage.kv_cache.full_bytes += choice.cache_stats.full_bytes;
    if (!choice.cache_details.empty()) usage.kv_cache.details = choice.cache_details;
  }
  const Clock::time_point start = scheduled.value_or(now), first = first_token.value_or(now);
  timings.queued_ms = milliseconds(start - submitted);
  timings.prefill_ms = milliseconds(first - start);
  timings.decode_ms = milliseconds(now - first);
  timings.total_ms = milliseconds(now - submitted);
  timings.model_ms = model_ms;
  timings.prefill_chunks = prefill_chunks;
  timings.decode_passes = decode_passes;
  timings.preemptions = preemptions;
  return usage;
}

TokenId sample_at(const Request& request, const Choice& choice, int64_t position, const TokenHistory& history,
                  std::span<const float> logits, Sampler* sampler) {
  const GenerationRequest& generation = request.generation;
  const std::span<const TokenId> forbidden = position >= generation.min_tokens
                                                 ? std::span<const TokenId>()
                                                 : std::span<const TokenId>(request.stop_tokens);
  const TokenNoise noise(request.seed, static_cast<uint32_t>(choice.index), static_cast<uint64_t>(position));
  return sampler->sample(logits, {generation.sampling, history, forbidden}, noise);
}

namespace {

// Adds the text of the token to the event, and the end of the choice if this is it.
void add_text(const Request& request, Choice* choice, TokenId token, GenerationEvent* event) {
  const bool stop_token = std::binary_search(request.stop_tokens.begin(), request.stop_tokens.end(), token);
  std::string text = stop_token ? std::string() : choice->decoder.push(token);
  if (stop_token) {
    event->finish = FinishReason::kStop;
  } else if (choice->n_output >= request.max_tokens) {
    event->finish = FinishReason::kLength;
  }
  if (event->finish != FinishReason::kNone) text += choice->decoder.flush();
  if (choice->n_output < request.generation.min_tokens) {  // stop strings count from the token on that may end the text
    event->text += text;
    return;
  }
  event->text += choice->stop.push(text);
  if (choice->stop.matched()) {
    event->finish = FinishReason::kStop;
    event->stop_string = choice->stop.matched();
  } else if (event->finish != FinishReason::kNone) {
    event->text += choice->stop.flush();
  }
}

}  // namespace

GenerationEvent sample_round(const Request& request, Choice* choice, const float* logits, int64_t row_stride,
                             int64_t vocabulary, SamplingScratch* scratch) {
  const GenerationRequest& generation = request.generation;
  GenerationEvent event;
  event.choice = choice->index;
  if (choice->draft != nullptr && !choice->draft->draft.empty()) event.drafts.push_back({0, 0, choice->draft->draft});
  bool goes_on = true;
  for (size_t row = 0; goes_on; ++row, logits += row_stride) {
    const std::span<const float> row_logits(logits, static_cast<size_t>(vocabulary));
    const TokenId token =
        sample_at(request, *choice, choice->n_output, choice->history, row_logits, &scratch->sampler);
    const bool accepted = !event.drafts.empty() && row < event.drafts[0].tokens.size() &&
                          event.drafts[0].tokens[row] == token;
    event.tokens.push_back(token);
    if (accepted) ++event.drafts[0].accepted;
    if (generation.logprobs >= 0) {
      scratch->logprobs.assign(row_logits);
      event.logprobs.push_back(scratch->logprobs.of(token, generation.logprobs));
    }
    ++choice->n_output;
    choice->tokens.push_back(token);
    if (needs_history(generation.sampling)) choice->history.add_output(token);
    add_text(request, choice, token, &event);
    goes_on = accepted && event.finish == FinishReason::kNone;
  }
  choice->input.assign(1, event.tokens.back());
  return event;
}

void add_prompt_logprobs(Request* request, int64_t first, const float* logits, int64_t n_rows, int64_t row_stride,
                         int64_t vocabulary, SamplingScratch* scratch) {
  const std::vector<TokenId>& prompt = request->generation.prompt;
  const auto known = static_cast<int64_t>(request->prompt_logprobs.size());  // of the tokens [1, known]
  for (int64_t row = std::max<int64_t>(0, known - first); row < n_rows; ++row) {
    const auto next = static_cast<size_t>(first + row + 1);
    if (next >= prompt.size()) break;
    scratch->logprobs.assign({logits + row * row_stride, static_cast<size_t>(vocabulary)});
    request->prompt_logprobs.push_back(scratch->logprobs.of(prompt[next], request->generation.prompt_logprobs));
  }
}

}  // namespace smartkv
