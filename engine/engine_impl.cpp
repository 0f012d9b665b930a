// The engine thread. What other threads call is in engine_submit.cpp.
#include "engine/engine_impl.h"

#include <algorithm>
#include <utility>

#include "engine/log.h"
#include "engine/model/policy_context.h"

namespace smartkv {
namespace {

SchedulerOptions scheduler_options(const EngineOptions& options) {
  return {options.max_sequences, options.max_queue, options.prefill_chunk, options.kv_cache_bytes};
}

std::set<TokenId> end_tokens(const Tokenizer& tokenizer, const ModelConfig& config) {
  std::set<TokenId> tokens(config.eos_token_ids.begin(), config.eos_token_ids.end());
  if (tokenizer.eos()) tokens.insert(*tokenizer.eos());
  // Chat models end a turn with tokens that their configuration does not always list.
  for (const char* name : {"<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>"}) {
    if (const auto token = tokenizer.token_id(name); token && tokenizer.is_special(*token)) tokens.insert(*token);
  }
  return tokens;
}

// How many drafted tokens a pass may carry after the last token: none beyond a boundary, and none that is a probe
// query, because what a cache has observed stays when the token is dropped.
int64_t draft_room(const SequenceCache& cache, int64_t cap) {
  const int64_t next = cache.tokens();  // the last token's position
  int64_t room = std::min(cap, cache.next_boundary() - next - 1);
  if (const TokenRange probes = cache.probes(room + 1); !probes.empty() && probes.end > next + 1) {
    room = std::min(room, std::max<int64_t>(0, probes.first - next - 1));
  }
  return room;
}

// What SequenceCache::details() says of a choice that ended, and its gauge in /metrics.
constexpr std::pair<const char*, const char*> kCacheMetrics[] = {
    {"forecast_last_loss", "forecast_last_loss"}, {"forecast_pending", "forecast_pending"},
    {"drift_l2_mean", "kv_drift_l2"},             {"drift_l2_max", "kv_drift_l2_max"},
    {"drift_jaccard_mean", "kv_drift_jaccard"},   {"drift_samples", "kv_drift_samples"},
};

PolicyContext draft_context(const EngineParts& parts) {
  if (parts.draft_model == nullptr) return {};
  return policy_context(*parts.draft_model, parts.draft_shape, parts.threads.get());
}

}  // namespace

EngineImpl::EngineImpl(EngineParts parts)
    : parts_(std::move(parts)),
      policy_context_(policy_context(*parts_.model, parts_.cache_shape, parts_.threads.get())),
      draft_context_(draft_context(parts_)),
      eos_(end_tokens(*parts_.tokenizer, parts_.model->config())),
      vocabulary_(std::min(parts_.model->config().vocab_size, parts_.tokenizer->vocab_size())),
      speculator_(parts_.model.get(), &policy_context_, parts_.draft_model.get(), &draft_context_,
                  parts_.int4_model.get(), vocabulary_, parts_.options.context_length),
      scheduler_(scheduler_options(parts_.options)) {
  std::erase_if(eos_, [this](TokenId token) { return token < 0 || token >= vocabulary_; });
  policy_for(nullptr);  // the defaults must work before the first request asks for them
  speculation_for(nullptr);
  thread_ = std::thread([this] { run(); });
}

EngineImpl::~EngineImpl() {
  stop();
  {
    const std::lock_guard lock(mutex_);
    exit_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void EngineImpl::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] { return exit_ || !requests_.empty(); });
      if (requests_.empty()) return;
    }
    end_cancelled();
    plan_batch();
    draft();
    if (!batch_.empty()) run_pass();
    batch_.clear();
  }
}

void EngineImpl::end_cancelled() {
  std::vector<std::shared_ptr<Request>> cancelled;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, request] : requests_) {
      if (cancel_all_ || request->events->cancelled()) cancelled.push_back(request);
    }
  }
  for (const auto& request : cancelled) end_request(request.get(), FinishReason::kCancelled);
}

void EngineImpl::plan_batch() {
  std::vector<std::shared_ptr<Request>> failed;
  {
    const std::lock_guard lock(mutex_);
    const auto boundary = [&](uint64_t id) {
      const std::shared_ptr<Request>& request = requests_.at(id);
      const int64_t tokens = prompt_boundary(request.get());
      if (!request->failure.empty()) failed.push_back(request);
      return tokens;
    };
    scheduler_.plan(boundary, &items_);
    for (const ScheduleItem& item : items_) batch_.push_back({requests_.at(item.request), item, 0});
  }
  for (const auto& request : failed) end_request(request.get(), FinishReason::kError, request->failure);
}

int64_t EngineImpl::prompt_boundary(Request* request) {
  Choice& choice = request->choices[0];
  try {
    if (choice.cache == nullptr) request->make_caches();
  } catch (const std::exception& error) {
    request->failure = error.what();
    return 0;
  }
  const SequenceCache* cache = choice.pass_cache();
  if (cache->next_boundary() <= cache->tokens()) {
    request->failure = "KV-cache policy \"" + std::string(request->policy->name()) + "\": the boundary at token " +
                       std::to_string(cache->next_boundary()) + " did not move when it was committed";
    return 0;
  }
  return cache->next_boundary();
}

void EngineImpl::draft() {
  draft_jobs_.clear();
  int64_t sequences = 0;
  for (const BatchRow& row : batch_) {
    if (row.item.prompt) continue;
    ++sequences;
    Request* request = row.request.get();
    Choice& choice = request->choices[static_cast<size_t>(row.item.choice)];
    if (choice.draft == nullptr) continue;
    const int64_t cap = std::min(choice.draft->speculation().spec.tokens, request->max_tokens - choice.n_output - 1);
    draft_jobs_.push_back({request, &choice, std::min(cap, draft_room(*choice.pass_cache(), cap))});
  }
  if (draft_jobs_.empty()) return;
  const Clock::time_point start = Clock::now();
  try {
    speculator_.draft(sequences, draft_jobs_);
  } catch (const std::exception& error) {
    log_error("drafting for " + std::to_string(draft_jobs_.size()) + " sequences failed: " + error.what());
    for (const DraftJob& job : draft_jobs_) job.request->failure = std::string("draft: ") + error.what();
  }
  const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  const Request* previous = nullptr;
  for (const DraftJob& job : draft_jobs_) {
    const std::vector<TokenId>& tokens = job.choice->draft->draft;
    job.choice->input.insert(job.choice->input.end(), tokens.begin(), tokens.end());
    if (job.request != previous) job.request->draft_ms += milliseconds;
    previous = job.request;
  }
  for (BatchRow& row : batch_) {
    if (!row.item.prompt) {
      row.item.n_tokens = static_cast<int64_t>(row.request->choices[static_cast<size_t>(row.item.choice)].input.size());
    }
    if (!row.request->failure.empty()) end_request(row.request.get(), FinishReason::kError, row.request->failure);
  }
  std::erase_if(batch_, [](const BatchRow& row) { return row.request->ended; });
}

void EngineImpl::run_pass() {
  const Clock::time_point start = Clock::now();
  if (!run_model()) return;
  take_results();
  if (std::any_of(batch_.begin(), batch_.end(), [](const BatchRow& row) { return row.item.prompt; })) return;
  int64_t n_rows = 0;
  for (const BatchRow& row : batch_) n_rows += row.n_logits;
  const std::chrono::duration<double, std::milli> took = Clock::now() - start;
  speculator_.pass_took(static_cast<int64_t>(batch_.size()), n_rows, took.count());
}

bool EngineImpl::run_model() {
  const Clock::time_point start = Clock::now();
  inputs_.clear();
  int64_t n_rows = 0;
  for (BatchRow& row : batch_) {
    Request& request = *row.request;
    if (!request.scheduled) request.scheduled = start;
    Choice& choice = request.choices[static_cast<size_t>(row.item.choice)];
    std::span<const TokenId> tokens = choice.input;
    row.n_logits = row.item.n_tokens;
    if (row.item.prompt) {
      const std::span<const TokenId> prompt = request.generation.prompt;
      tokens = prompt.subspan(static_cast<size_t>(request.computed), static_cast<size_t>(row.item.n_tokens));
      const bool last = request.computed + row.item.n_tokens == static_cast<int64_t>(prompt.size());
      if (request.generation.prompt_logprobs < 0) row.n_logits = last && request.max_tokens > 0 ? 1 : 0;
    }
    inputs_.push_back({tokens, choice.pass_cache(), row.n_logits});
    n_rows += row.n_logits;
  }
  const auto size = static_cast<size_t>(n_rows * config().vocab_size);
  std::string error;
  try {
    if (logits_.size() < size) logits_.resize(size);
    parts_.model->forward(inputs_, logits_.data());
  } catch (const std::exception& exception) {
    error = exception.what();
  }
  const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  const Request* previous = nullptr;  // the rows of a request are neighbours
  for (const BatchRow& row : batch_) {
    if (row.request.get() == previous) continue;
    previous = row.request.get();
    row.request->model_ms += milliseconds;
    ++(row.item.prompt ? row.request->prefill_chunks : row.request->decode_passes);
  }
  {
    const std::lock_guard lock(mutex_);
    ++recorder_.stats.steps;
  }
  if (error.empty()) return true;
  log_error("model pass of " + std::to_string(batch_.size()) + " sequences failed: " + error);
  for (const BatchRow& row : batch_) end_request(row.request.get(), FinishReason::kError, error);
  return false;
}

// The drafts' caches see the prompt chunks of the pass too.
void EngineImpl::follow_prompts() {
  prompts_.clear();
  for (const BatchRow& row : batch_) {
    if (!row.item.prompt || row.request->choices[0].draft == nullptr) continue;
    prompts_.push_back(row.request.get());
  }
  if (prompts_.empty()) return;
  const Clock::time_point start = Clock::now();
  try {
    speculator_.follow_prompts(prompts_);
  } catch (const std::exception& error) {
    log_error("drafting for " + std::to_string(prompts_.size()) + " prompts failed: " + error.what());
    for (Request* request : prompts_) {
      end_request(request, FinishReason::kError, std::string("draft: ") + error.what());
    }
  }
  const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  for (Request* request : prompts_) request->draft_ms += milliseconds;
}

void EngineImpl::take_results() {
  follow_prompts();
  const float* logits = logits_.data();
  for (const BatchRow& row : batch_) {
    Request* request = row.request.get();
    if (!request->ended) {
      try {
        if (row.item.prompt) {
          take_prompt_chunk(request, row, logits);
        } else {
          take_round(request, &request->choices[static_cast<size_t>(row.item.choice)], logits);
        }
      } catch (const std::exception& error) {
        log_warning(request->generation.id + " failed: " + error.what());
        end_request(request, FinishReason::kError, error.what());
      }
    }
    logits += row.n_logits * config().vocab_size;
  }
}

void EngineImpl::take_prompt_chunk(Request* request, const BatchRow& row, const float* logits) {
  const int64_t n_tokens = row.item.n_tokens;
  if (request->generation.prompt_logprobs >= 0) {
    const SampleTimer timer(request);
    add_prompt_logprobs(request, logits, n_tokens, config().vocab_size, vocabulary_, &sampling_);
  }
  request->computed += n_tokens;
  SequenceCache* cache = request->choices[0].pass_cache();
  cache->commit(cache->tokens());
  set_cache_stats(&request->choices[0]);
  {
    const std::lock_guard lock(mutex_);
    scheduler_.prompt_advanced(request->id, n_tokens);
    recorder_.stats.prompt_tokens += static_cast<uint64_t>(n_tokens);
  }
  if (request->computed < static_cast<int64_t>(request->generation.prompt.size())) return;
  request->events->set_prompt_logprobs(std::move(request->prompt_logprobs));
  if (request->max_tokens == 0) {
    end_request(request, FinishReason::kLength);
    return;
  }
  request->fork_choices(*parts_.tokenizer);
  for (size_t i = 1; i < request->choices.size(); ++i) set_cache_stats(&request->choices[i]);
  for (Choice& choice : request->choices) {
    take_round(request, &choice, logits + (row.n_logits - 1) * config().vocab_size);
  }
}

void EngineImpl::take_round(Request* request, Choice* choice, const float* logits) {
  GenerationEvent event;
  {
    const SampleTimer timer(request);
    event = sample_round(*request, choice, logits, config().vocab_size, vocabulary_, &sampling_);
  }
  settle(choice, event);
  deliver(request, choice, std::move(event));
}

// Drops what was drafted in vain. The last token of the event was in no pass yet.
void EngineImpl::settle(Choice* choice, const GenerationEvent& event) {
  SequenceCache* cache = choice->pass_cache();
  if (!event.drafts.empty()) {
    const auto drafted = static_cast<int64_t>(event.drafts[0].tokens.size());
    const auto kept = static_cast<int64_t>(event.tokens.size()) - 1;
    if (kept < drafted) cache->truncate(cache->tokens() - drafted + kept);
  }
  cache->commit(cache->tokens());
  if (choice->draft != nullptr) {
    choice->draft->end_round(event.tokens, event.drafts.empty() ? 0 : event.drafts[0].accepted);
  }
  set_cache_stats(choice);
}

void EngineImpl::deliver(Request* request, Choice* choice, GenerationEvent event) {
  const auto n_tokens = static_cast<int64_t>(event.tokens.size());
  const Clock::time_point now = Clock::now();
  {
    const auto seconds = [now](Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
    const std::lock_guard lock(mutex_);
    if (!request->first_token) recorder_.first_token(seconds(request->submitted));
    if (choice->n_output > n_tokens) recorder_.next_tokens(n_tokens, seconds(choice->last_token));
    recorder_.stats.generation_tokens += static_cast<uint64_t>(n_tokens);
    for (const DraftRound& round : event.drafts) recorder_.drafted(round);
  }
  if (!request->first_token) request->first_token = now;
  choice->last_token = now;
  if (event.finish != FinishReason::kNone) {
    finish_choice(request, choice, std::move(event));
  } else {
    request->events->push(std::move(event), request->usage(now));
  }
}

void EngineImpl::set_cache_stats(Choice* choice) {
  const CacheStats stats = choice->cache->stats();
  kv_bytes_used_ += stats.bytes - choice->cache_stats.bytes;
  choice->cache_stats = stats;
  if (choice->draft == nullptr) return;
  choice->speculation = choice->draft->usage;
  if (choice->draft->cache() == nullptr) return;
  const int64_t bytes = choice->draft->cache()->stats().bytes;
  kv_bytes_used_ += bytes - choice->draft_bytes;
  choice->draft_bytes = bytes;
}

void EngineImpl::drop_cache(Choice* choice) {
  if (choice->cache == nullptr) return;
  choice->draft.reset();
  choice->cache.reset();
  kv_bytes_used_ -= choice->cache_stats.bytes + choice->draft_bytes;
}

void EngineImpl::finish_choice(Request* request, Choice* choice, GenerationEvent event) {
  choice->cache_details = choice->cache->details();
  const RequestUsage usage = request->usage(Clock::now());
  drop_cache(choice);
  choice->finished = true;
  // Freed and counted before the reader hears of it.
  const bool last = request->all_finished();
  {
    const std::lock_guard lock(mutex_);
    scheduler_.choice_finished(request->id, choice->index);
    if (last) recorder_.request_finished(event.finish, usage.timings);
    for (const auto& [name, metric] : kCacheMetrics) {
      if (const auto detail = choice->cache_details.find(name); detail != choice->cache_details.end()) {
        recorder_.stats.extra[metric] = detail->second;
      }
    }
  }
  request->ended = last;
  request->events->push(std::move(event), usage);
  if (last) forget(request->id);
}

void EngineImpl::end_request(Request* request, FinishReason reason, const std::string& error) {
  if (request->ended) return;
  request->ended = true;
  const RequestUsage usage = request->usage(Clock::now());
  for (Choice& choice : request->choices) drop_cache(&choice);
  {
    const std::lock_guard lock(mutex_);
    scheduler_.remove(request->id);
    recorder_.request_finished(reason, usage.timings);
  }
  for (int32_t i = 0; i < request->generation.n; ++i) {
    if (static_cast<size_t>(i) < request->choices.size() && request->choices[static_cast<size_t>(i)].finished) continue;
    GenerationEvent event;
    event.choice = i;
    event.finish = reason;
    event.error = error;
    request->events->push(std::move(event), usage);
  }
  forget(request->id);
}

void EngineImpl::forget(uint64_t id) {
  const std::lock_guard lock(mutex_);
  requests_.erase(id);
  if (requests_.empty()) idle_.notify_all();
}

}  // namespace smartkv
