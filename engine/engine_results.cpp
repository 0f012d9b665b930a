// The engine thread's work after a pass: it advances prompts, samples and delivers tokens, and ends requests.
#include "engine/engine_impl.h"
#include "engine/log.h"

namespace smartkv {
namespace {

// Commits all tokens of the cache that passes fill. A commit at a compaction boundary writes a line of level debug.
void commit_all(Sequence* choice) {
  SequenceCache* const cache = choice->pass_cache();
  if (cache->tokens() != cache->next_boundary() || !log_enabled(LogLevel::kDebug))
    return cache->commit(cache->tokens());
  const int64_t bytes = cache->stats().bytes;
  const Clock::time_point start = Clock::now();
  cache->commit(cache->tokens());
  const double milliseconds = milliseconds_since(start);
  const CacheStats stats = cache->stats();
  log(LogLevel::kDebug, "compacted",
      {{"id", choice->request->generation.id},
       {"choice", std::to_string(choice->index)},
       {"policy", choice->request->policy->name()},
       {"tokens", std::to_string(stats.tokens)},
       {"tokens_kept", std::to_string(stats.tokens_kept)},
       {"bytes_before", std::to_string(bytes)},
       {"bytes", std::to_string(stats.bytes)},
       {"ms", std::to_string(milliseconds)}});
}

}  // namespace

void EngineImpl::take_results() {
  takes_results_ = true;
  for (const BatchRow& row : batch_) {
    if (row.failure) fail_request(row.request.get(), row.failure);
  }
  follow_prompts();
  for (const BatchRow& row : batch_) {
    if (!row.failure && !row.request->ended) count_tokens(row);
  }
  take_prompt_chunks();
  sample();
  for (BatchRow& row : batch_) {
    Request* request = row.request.get();
    if (request->ended) continue;
    try {
      if (row.failure) std::rethrow_exception(row.failure);
      scheduler_.isolate(row.choice, false);
      if (!row.samples) continue;
      // Nothing was sampled: the logits have to be checked first, or the grammar refused the device sampler's token.
      if (row.event.tokens.empty()) {
        scheduler_.drop(row.choice, false);
        continue;
      }
      settle(row.choice, row.event);
      deliver(request, row.choice, std::move(row.event));
    } catch (...) {
      fail_request(request, std::current_exception());
    }
  }
  takes_results_ = false;
}

void EngineImpl::take_prompt_chunks() {
  const size_t n_rows = batch_.size();  // now, because end_prompt() appends rows for the other choices of a request
  for (size_t i = 0; i < n_rows; ++i) {
    if (batch_[i].request->ended || !batch_[i].is_prompt()) continue;
    try {
      take_prompt_chunk(&batch_[i]);
      if (batch_[i].samples && batch_[i].choice->n_output == 0) end_prompt(batch_[i]);
    } catch (...) {
      batch_[i].failure = std::current_exception();
    }
  }
}

void EngineImpl::take_prompt_chunk(BatchRow* row) {
  Request* const request = row->request.get();
  Sequence* const choice = row->choice;
  if (choice->n_output == 0 && request->generation.prompt_logprobs >= 0) {
    const SampleTimer timer(choice);
    const int64_t first = choice->computed() - row->n_logits;
    add_prompt_logprobs(request, first, row->logits, row->n_logits, config().vocab_size, vocabulary_, &sampling_[0]);
  }
  if (row->n_logits > 1) row->logits += (row->n_logits - 1) * config().vocab_size;
  SequenceCache* cache = choice->pass_cache();
  if (choice->leaves_prefix()) {
    // A mirrored draft's cache gets tokens beyond its own compaction boundary at the commit, which is therefore done
    // first.
    if (choice->keeps_draft_prefix() && choice->draft->cache()->tokens() < cache->tokens()) commit_all(choice);
    choice->keep_prefix();
  }
  // Only uncommitted tokens can be truncated, so tokens of a prompt are committed only where they must be.
  const bool prompt_goes_on = choice->computed() < request->prompt_tokens() && cache->tokens() < cache->next_boundary();
  if (!prompt_goes_on || choice->draft != nullptr) commit_all(choice);
  if (cache->next_boundary() <= cache->tokens()) {
    throw CacheError("KV-cache policy \"" + std::string(request->policy->name()) +
                     "\": the compaction boundary at token " + std::to_string(cache->next_boundary()) +
                     " did not advance when it was committed");
  }
  choice->read_stats();
}

// Counts the tokens of a pass. A token counts as a prompt token when it is first computed. All other known tokens count
// as recomputed, either to compare logits or because the sequence was preempted or its pass failed.
void EngineImpl::count_tokens(const BatchRow& row) {
  if (row.decodes) return;
  Request* const request = row.request.get();
  const int64_t end = std::min(row.choice->computed(), request->prompt_tokens());
  const int64_t fresh =
      std::max<int64_t>(0, end - std::max(request->prompt_computed, row.choice->computed() - row.n_tokens));
  request->prompt_computed = std::max(request->prompt_computed, end);
  const bool checks = !row.choice->checked_logits.empty();
  // A last token that was sampled was in no pass yet, so it is not recomputed.
  const int64_t sampled = !checks && row.samples && row.choice->n_output > 0 ? 1 : 0;
  const int64_t again = row.n_tokens - fresh - sampled;
  if (!checks) request->recomputed_tokens += again;
  const std::lock_guard lock(mutex_);
  recorder_.stats.prompt_tokens += static_cast<uint64_t>(fresh);
  policy_stats(*request).prompt_tokens += static_cast<uint64_t>(fresh);
  (checks ? recorder_.stats.logit_check_tokens : recorder_.stats.recomputed_tokens) += static_cast<uint64_t>(again);
}

// Completes a prompt whose last token's logits are there. Gives the other choices rows of their own, which invalidates
// references into batch_, `row` included.
void EngineImpl::end_prompt(const BatchRow& row) {
  const std::shared_ptr<Request> request = row.request;
  const Sequence* parent = row.choice;
  const float* logits = row.logits;
  request->events->set_prompt_logprobs(std::move(request->prompt_logprobs));
  if (request->max_tokens == 0) return end_request(request.get(), FinishReason::kLength);
  request->fork_choices(*parts_.tokenizer);
  for (size_t c = 1; c < request->choices.size(); ++c) {
    scheduler_.fork(parent, &request->choices[c]);
    BatchRow& fork = batch_.emplace_back();
    fork.request = request;
    fork.choice = &request->choices[c];
    fork.samples = true;
    fork.logits = logits;
  }
}

void EngineImpl::for_rows(const std::function<void(BatchRow*, SamplingScratch*)>& work) {
  std::atomic<size_t> next{0};
  const auto take = [&](int64_t thread) {
    for (size_t i = next++; i < samples_.size(); i = next++) {
      const SampleTimer timer(samples_[i]->choice);
      work(samples_[i], &sampling_[static_cast<size_t>(thread)]);
    }
  };
  if (parts_.threads == nullptr) return take(0);
  parts_.threads->parallel_for(static_cast<int64_t>(sampling_.size()), take);
}

void EngineImpl::prepare_draws() {
  if (!parts_.model->samples_tokens()) return;
  samples_.clear();
  for (BatchRow& row : batch_) {
    if (row.samples && row.n_logits > 0) samples_.push_back(&row);
  }
  for_rows([this](BatchRow* row, SamplingScratch*) {
    try {
      row->draw = draw_on_device(*row->request, row->choice, row->n_logits, vocabulary_);
    } catch (...) {  // sample() will meet the same error, and can end the request
      row->draw.reset();
    }
  });
}

void EngineImpl::sample() {
  samples_.clear();
  for (BatchRow& row : batch_) {
    if (row.samples && !row.failure && !row.request->ended) samples_.push_back(&row);
  }
  for_rows([this](BatchRow* row, SamplingScratch* scratch) {
    try {
      const std::span<const float> logits(row->logits, static_cast<size_t>(vocabulary_));
      const bool checks = row->n_logits <= 1 && !row->draw;
      if (checks && !row->choice->check_logits(logits, policy_context_.pool, parts_.options.kv_cache_bytes)) return;
      row->event = sample_round(*row->request, row->choice, row->logits, config().vocab_size, vocabulary_,
                                row->draw ? &*row->draw : nullptr, scratch);
    } catch (...) {
      row->failure = std::current_exception();
    }
  });
}

// Rolls the cache back to the accepted tokens and commits them. The last token of the event was in no pass yet.
void EngineImpl::settle(Sequence* choice, const GenerationEvent& event) {
  SequenceCache* cache = choice->pass_cache();
  if (!event.drafts.empty()) {
    const auto drafted = static_cast<int64_t>(event.drafts[0].tokens.size());
    const auto kept = static_cast<int64_t>(event.tokens.size()) - 1;
    if (kept < drafted) cache->truncate(cache->tokens() - drafted + kept);
  }
  commit_all(choice);
  if (choice->draft != nullptr) {
    choice->draft->end_round(event.tokens, event.drafts.empty() ? 0 : event.drafts[0].accepted);
  }
  choice->read_stats();
}

void EngineImpl::deliver(Request* request, Sequence* choice, GenerationEvent event) {
  const auto n_tokens = static_cast<int64_t>(event.tokens.size());
  const Clock::time_point now = Clock::now();
  {
    const auto seconds = [now](Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
    const std::lock_guard lock(mutex_);
    if (!request->first_token) recorder_.first_token(seconds(request->submitted));
    if (choice->n_output > n_tokens) recorder_.next_tokens(n_tokens, seconds(choice->last_token));
    recorder_.stats.generation_tokens += static_cast<uint64_t>(n_tokens);
    policy_stats(*request).generation_tokens += static_cast<uint64_t>(n_tokens);
    for (const DraftRound& round : event.drafts) recorder_.drafted(round, n_tokens);
  }
  if (!request->first_token) request->first_token = now;
  choice->last_token = now;
  if (event.finish != FinishReason::kNone) {
    finish_choice(request, choice, std::move(event));
  } else {
    request->events->push(std::move(event), request->usage(now));
  }
}

void EngineImpl::finish_choice(Request* request, Sequence* choice, GenerationEvent event) {
  // The next turn of the conversation can resume from here if the policy's state does not depend on where the prompt
  // ended. A sequence that ends while it is being recomputed may hold uncommitted tokens; it leaves no state.
  const bool settled = choice->cache->committed() == choice->cache->tokens() && choice->check.tokens == 0;
  if (request->prefixes != nullptr && settled && choice->cache->resume(choice->computed() + 1) != nullptr) {
    choice->keep_prefix();
  }
  choice->cache_details = choice->cache->details();
  choice->cache_tiers = tier_use(*choice->cache, parts_.cache_shape);
  const RequestUsage usage = request->usage(Clock::now());
  scheduler_.remove(choice);
  choice->finish();
  const bool last = request->all_finished();
  try {
    {  // The caches are freed and the request is counted before the reader gets the last event.
      const std::lock_guard lock(mutex_);
      if (last) count_finished(request, event.finish, usage.timings);
      recorder_.sequence_finished(choice->cache_details, &policy_stats(*request));
      publish();
    }
    request->events->push(std::move(event), usage);
  } catch (...) {  // end_request() would send no event of a finished choice
    return abort_request(request, FinishReason::kOutOfMemory, kNoMemory);
  }
  if (!last) return;
  request->ended = true;
  forget(request->id);
}

void EngineImpl::end_request(Request* request, FinishReason reason, const std::string& error) {
  if (request->ended) return;
  try {
    const RequestUsage usage = request->usage(Clock::now());
    for (Sequence& choice : request->choices) {
      scheduler_.remove(&choice);
      choice.free_caches();
    }
    {
      const std::lock_guard lock(mutex_);
      count_finished(request, reason, usage.timings);
      publish();
    }
    for (int32_t i = 0; i < request->generation.n; ++i) {
      if (static_cast<size_t>(i) < request->choices.size() && request->choices[static_cast<size_t>(i)].finished)
        continue;
      GenerationEvent event;
      event.choice = i;
      event.finish = reason;
      event.error = error;
      request->events->push(std::move(event), usage);
    }
  } catch (...) {
    return abort_request(request, reason, "the request ended because memory ran out");
  }
  request->ended = true;
  forget(request->id);
}

void EngineImpl::abort_request(Request* request, FinishReason reason, const char* error) noexcept {
  if (request->ended) return;
  request->ended = true;
  for (Sequence& choice : request->choices) {
    scheduler_.remove(&choice);
    choice.free_caches();
  }
  {
    const std::lock_guard lock(mutex_);
    count_finished(request, reason, request->timings(Clock::now()));
    try {
      publish();
    } catch (...) {  // no memory for it; the next step publishes
    }
  }
  request->events->abort(reason, error);
  forget(request->id);
}

void EngineImpl::count_finished(Request* request, FinishReason reason, const RequestTimings& timings) {
  if (!std::exchange(request->finish_counted, true)) recorder_.request_finished(reason, timings);
}

void EngineImpl::fail_request(Request* request, const std::exception_ptr& exception) noexcept {
  if (request->ended) return;
  const std::shared_ptr<Request> kept = requests_.at(request->id);
  try {
    const Failure failure = failure_of(exception);
    log_warning(request->generation.id + " failed: " + failure.error);
    fail_request(request, failure);
  } catch (...) {
    abort_request(request, FinishReason::kOutOfMemory, kNoMemory);
  }
}

// Ends the request. If the machine is out of memory, also frees all states of the prefix cache and the unused pages of
// the pools, because other threads need memory even to answer.
void EngineImpl::fail_request(Request* request, const Failure& failure) {
  end_request(request, failure.reason, failure.error);
  if (failure.reason != FinishReason::kOutOfMemory) return;
  while (prefixes_.evict(PrefixCache::Evict::kAny)) {
  }
  policy_context_.pool->free_unused();
  for (const PolicyContext* context : {&draft_context_, &offload_context_}) {
    if (context->pool != nullptr) context->pool->free_unused();
  }
}

}  // namespace smartkv
