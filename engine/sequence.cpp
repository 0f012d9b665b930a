#include "engine/sequence.h"

#include "engine/request.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/thinking.h"

namespace smartkv {

Sequence::Sequence(Request* owner, int32_t choice_index, const Tokenizer& tokenizer)
    : request(owner),
      index(choice_index),
      tokens(owner->generation.prompt),
      decoder(tokenizer, owner->generation.skip_special_tokens, owner->generation.shown_special),
      stop(owner->generation.stop) {
  if (owner->grammar != nullptr) constraint = owner->grammar->start();
  if (owner->generation.thinking) {
    constraint = constrain_thinking(*owner->generation.thinking, tokenizer, owner->stop_tokens, std::move(constraint));
  }
  if (needs_history(owner->generation.sampling)) history = TokenHistory(owner->generation.prompt);
}

void Sequence::fork_from(const Sequence& other) {
  cache = other.cache->fork();
  if (other.draft != nullptr) draft = other.draft->fork(cache.get());
  read_stats();
}

int64_t Sequence::computed() const { return cache == nullptr ? 0 : cache->tokens(); }

int64_t Sequence::pass_limit() const {
  // A prompt's probes at its end get a pass of their own if they begin at this token or later. Other prompts can then
  // resume from the state before them.
  constexpr int64_t kLeastPartedPrompt = 256;
  int64_t limit = std::max<int64_t>(1, pass_cache()->next_boundary() - computed());
  if (diverges_at > computed()) limit = std::min(limit, diverges_at - computed());
  // A cache keeps what it has observed even if it is truncated. So a state for other prompts must be from before the
  // probes at the prompt's end.
  const int64_t end = computed() + limit;
  if (!near_prompt_end(end)) return limit;
  const TokenRange probes = cache->probes(std::min(limit, request->prompt_tokens() - computed()));
  const bool parts = !probes.empty() && probes.first > computed() && probes.first >= kLeastPartedPrompt;
  return parts ? probes.first - computed() : limit;
}

// Returns whether a pass that ends after `end` tokens (usually at a boundary) reaches the last tokens of the prompt.
// Other prompts are expected to diverge from this one there, so a state is wanted.
bool Sequence::near_prompt_end(int64_t end) const {
  if (request->prefixes == nullptr || computed() >= request->prompt_tokens()) return false;
  return end >= request->prompt_tokens() - kMinStateTokens;
}

bool Sequence::leaves_prefix() const {
  if (request->prefixes == nullptr || check.tokens > 0 || computed() < PrefixCache::kLeastTokens) return false;
  const int64_t left = request->prompt_tokens() - computed();
  if (left <= 0 || computed() == diverges_at) return left >= 0;
  const int64_t boundary = cache->next_boundary();
  if (!near_prompt_end(boundary)) return false;
  if (computed() == boundary) return cache->committed() < boundary;  // uncommitted, so it can be truncated
  const TokenRange probes = cache->probes(left);
  return !probes.empty() && probes.first == computed();
}

int64_t Sequence::max_growth(int64_t n) const {
  const int64_t drafts = draft == nullptr || draft->cache() == nullptr ? 0 : draft->cache()->max_growth(n);
  return drafts + (request->offloads() ? 0 : cache->max_growth(n));
}

// While decoding, each token has a row: the last known token, and each drafted token that is to be verified. While
// computing a prompt, the rows are the last ones of the pass:
//  - for log probabilities of the prompt, from the first row on that gives one which is not known yet;
//  - otherwise one row, for the last known token, if the pass reaches it.
int64_t Sequence::logit_rows(int64_t n) const {
  if (!computes_prompt()) return n;
  int64_t rows = n == left() && request->max_tokens > 0 ? 1 : 0;
  if (n_output > 0 || request->generation.prompt_logprobs < 0) return rows;
  const auto known = static_cast<int64_t>(request->prompt_logprobs.size());  // tokens [1, known] have theirs
  const int64_t end = std::min(computed() + n, request->prompt_tokens() - 1);
  if (end > known) rows = computed() + n - std::max(known, computed());
  return rows;
}

int64_t Sequence::held() const { return draft_bytes + (request->offloads() ? 0 : cache_stats.bytes); }

int64_t Sequence::offloaded() const { return request->offload_bytes(); }

int64_t Sequence::bytes_ahead(int64_t beyond) const {
  const int64_t n =
      std::min(static_cast<int64_t>(tokens.size()) + beyond, request->prompt_tokens() + request->max_tokens);
  if (computed() >= request->prompt_tokens()) return request->max_bytes(0, n);
  const int64_t whole = request->max_bytes(request->prompt_tokens(), n);
  // After a prefix hit only the rest of the prompt is dense for a while.
  return known().tokens == 0 ? whole : std::min(whole, request->max_bytes(0, n) + prompt_bytes);
}

int64_t Sequence::growth_ahead(int64_t beyond) const {
  const int64_t ahead = bytes_ahead(beyond);
  if (cache == nullptr) return std::max<int64_t>(0, ahead - known().bytes);
  return std::max<int64_t>(0, ahead - held()) + shared_once;
}

ScheduledSequence::Known Sequence::known() const {
  if (prefix.state() == nullptr) return prefix_known;
  if (prefix.state()->cache == nullptr) return {};
  Known known = prefix_known;
  known.sharers = prefix.sharers();
  return known;
}

bool Sequence::check_logits(std::span<const float> logits, const std::shared_ptr<PagePool>& pool, int64_t room) {
  if (n_output == 0) return true;
  if (!checked_logits.empty()) {
    check = cache->judge(logits, checked_logits);
    checked_logits = {};
    checked_bytes.reset();
  } else if (cache->wants_check()) {
    // The exact cache grows up to the next boundary, where it may be compressed again.
    const int64_t end = std::min(cache->next_boundary(), request->prompt_tokens() + request->max_tokens);
    if (request->max_bytes(0, end) + static_cast<int64_t>(logits.size_bytes()) > room) return true;
    check.tokens = computed();
    checked_logits.assign(logits.begin(), logits.end());
    checked_bytes.emplace(pool, static_cast<int64_t>(logits.size_bytes()));
    return false;
  }
  return true;
}

void Sequence::look_up() {
  if (request->prefixes == nullptr || check.tokens > 0) return;
  const PrefixCache& prefixes = *request->prefixes;
  const uint64_t version = prefixes.version(request->prefix_group) + prefixes.version(request->draft_prefix_group);
  if (prefix_version == version) return;
  prefix_version = version;
  const auto covers = [&](const std::string& key) {
    return request->prefixes->covers(key, request->generation.prompt);
  };
  PrefixCache::Covered covered = covers(request->prefix_key), drafts = {covered.tokens, nullptr};
  if (!request->draft_prefix_key.empty()) drafts = covers(request->draft_prefix_key);
  const PrefixCache::Held state = covered.state;
  prefix.claim(std::move(covered.state));
  draft_prefix.claim(std::move(drafts.state));
  prefix_owed = dropped && state != nullptr ? state->owed : nullptr;
  prefix_known = {std::min(covered.tokens, drafts.tokens), 0};
  if (state == nullptr || prefix_known.tokens == 0) return;
  const CacheStats stats = state->cache->stats();
  const int64_t token_bytes = stats.full_bytes / stats.tokens;
  const int64_t cut = token_bytes * (stats.tokens - prefix_known.tokens);  // usually from the dense tail
  prefix_known.bytes = std::max<int64_t>(0, state->cache->stable_bytes() - cut);
  prompt_bytes = token_bytes * (request->prompt_tokens() - prefix_known.tokens);
}

std::unique_ptr<SequenceCache> Sequence::find_prefix() {
  PrefixCache* prefixes = request->prefixes;
  if (prefixes == nullptr) return nullptr;
  const std::vector<TokenId>& prompt = request->generation.prompt;
  const bool drafts = !request->draft_prefix_key.empty();
  const int64_t most = drafts ? prefixes->covers(request->draft_prefix_key, prompt).tokens : INT64_MAX;
  cache = prefix.find(prefixes, request->prefix_key, *request->policy, prompt, &diverges_at, most, &request->lookup);
  if (cache == nullptr || !drafts) return nullptr;
  auto draft_cache = draft_prefix.find(prefixes, request->draft_prefix_key, *request->speculation->policy, prompt,
                                       nullptr, cache->tokens());
  if (draft_cache != nullptr && draft_cache->tokens() == cache->tokens()) return draft_cache;
  free_caches();  // a hit needs both states
  return nullptr;
}

void Sequence::begin() {
  free_caches();
  dropped = false;
  diverges_at = 0;
  prefix_known = {};
  std::unique_ptr<SequenceCache> draft_cache = check.tokens > 0 ? nullptr : find_prefix();
  prefix.run();
  draft_prefix.run();
  if (diverges_at < computed() + kMinStateTokens) diverges_at = 0;
  if (!request->looked_up) request->cached_tokens = request->prompt_computed = computed();
  request->looked_up = true;
  if (cache == nullptr) {
    cache = request->policy->new_sequence(request->prompt_tokens());
    if (check.tokens > 0) cache->follow(check);
  }
  read_stats();
  prefix.begin(*cache);
  if (request->speculation == nullptr || request->max_tokens <= 1) return;
  draft = std::make_unique<DraftSequence>(request->speculation, tokens, cache.get(), std::move(draft_cache));
  draft->usage = speculation;
  read_stats();
  if (draft->cache() != nullptr) draft_prefix.begin(*draft->cache());
}

bool Sequence::keeps_draft_prefix() const { return !request->draft_prefix_key.empty() && draft->cache() != nullptr; }

void Sequence::keep_prefix() {
  const auto known = std::span<const TokenId>(tokens).first(static_cast<size_t>(computed()));
  prefix.store(request->prefixes, request->prefix_key, known, *cache, request->lookup.turn);
  const bool drafts = keeps_draft_prefix() && draft->cache()->tokens() == computed();
  if (!drafts) return;
  draft_prefix.store(request->prefixes, request->draft_prefix_key, known, *draft->cache(), request->lookup.turn);
}

void Sequence::drop() {
  free_caches();
  dropped = true;
  cache_stats = {};
  draft_bytes = 0;
}

void Sequence::free_caches() {
  draft.reset();  // first, because it points into the cache
  cache.reset();
  prefix.release();
  draft_prefix.release();
  prefix_owed.reset();
  prefix_version = 0;
}

void Sequence::finish() {
  free_caches();
  finished = true;
}

void Sequence::read_stats() {
  cache_stats = cache->stats();
  const int64_t shared = cache_stats.shared_bytes;
  shared_once = shared == 0 ? 0 : std::max<int64_t>(0, shared - cache->stable_bytes());
  if (draft == nullptr) return;
  speculation = draft->usage;
  draft_bytes = draft->cache() == nullptr ? 0 : draft->cache()->stats().bytes;
}

}  // namespace smartkv
