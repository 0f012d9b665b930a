// The engine thread. What other threads call is in engine_submit.cpp.
#include "engine/engine_impl.h"

#include <algorithm>
#include <utility>

#include "engine/log.h"
#include "engine/model/policy_context.h"
#include "engine/request_checks.h"

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

}  // namespace

EngineImpl::EngineImpl(EngineParts parts)
    : parts_(std::move(parts)),
      policy_context_(policy_context(*parts_.model, parts_.cache_shape, parts_.threads.get())),
      eos_(end_tokens(*parts_.tokenizer, parts_.model->config())),
      vocabulary_(std::min(parts_.model->config().vocab_size, parts_.tokenizer->vocab_size())),
      scheduler_(scheduler_options(parts_.options)) {
  std::erase_if(eos_, [this](TokenId token) { return token < 0 || token >= vocabulary_; });
  policy_for(nullptr);  // the defaults must work before the first request asks for them
  check_speculative(parts_.options.speculative);
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
    if (!batch_.empty() && run_model()) take_results();
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
  std::unique_ptr<SequenceCache>& cache = request->choices[0].cache;
  try {
    if (cache == nullptr) cache = request->policy->new_sequence(static_cast<int64_t>(request->generation.prompt.size()));
  } catch (const std::exception& error) {
    request->failure = error.what();
    return 0;
  }
  if (cache->next_boundary() <= cache->tokens()) {
    request->failure = "KV-cache policy \"" + std::string(request->policy->name()) + "\": the boundary at token " +
                       std::to_string(cache->next_boundary()) + " did not move when it was committed";
    return 0;
  }
  return cache->next_boundary();
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
    inputs_.push_back({tokens, choice.cache.get(), row.n_logits});
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

void EngineImpl::take_results() {
  const float* logits = logits_.data();
  for (const BatchRow& row : batch_) {
    Request* request = row.request.get();
    if (!request->ended) {
      try {
        if (row.item.prompt) {
          take_prompt_chunk(request, row, logits);
        } else {
          Choice& choice = request->choices[static_cast<size_t>(row.item.choice)];
          commit(&choice);
          take_token(request, &choice, logits);
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
  commit(&request->choices[0]);
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
    take_token(request, &choice, logits + (row.n_logits - 1) * config().vocab_size);
  }
}

void EngineImpl::take_token(Request* request, Choice* choice, const float* logits) {
  GenerationEvent event;
  {
    const SampleTimer timer(request);
    event = sample_next(*request, choice, {logits, static_cast<size_t>(vocabulary_)}, &sampling_);
  }
  const Clock::time_point now = Clock::now();
  {
    const auto seconds = [now](Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
    const std::lock_guard lock(mutex_);
    if (!request->first_token) recorder_.first_token(seconds(request->submitted));
    if (choice->n_output > 1) recorder_.next_token(seconds(choice->last_token));
    ++recorder_.stats.generation_tokens;
  }
  if (!request->first_token) request->first_token = now;
  choice->last_token = now;
  if (event.finish != FinishReason::kNone) {
    finish_choice(request, choice, std::move(event));
  } else {
    request->events->push(std::move(event), request->usage(now));
  }
}

void EngineImpl::commit(Choice* choice) {
  choice->cache->commit(choice->cache->tokens());
  set_cache_stats(choice);
}

void EngineImpl::set_cache_stats(Choice* choice) {
  const CacheStats stats = choice->cache->stats();
  kv_bytes_used_ += stats.bytes - choice->cache_stats.bytes;
  choice->cache_stats = stats;
}

void EngineImpl::drop_cache(Choice* choice) {
  if (choice->cache == nullptr) return;
  choice->cache.reset();
  kv_bytes_used_ -= choice->cache_stats.bytes;
}

void EngineImpl::finish_choice(Request* request, Choice* choice, GenerationEvent event) {
  const RequestUsage usage = request->usage(Clock::now());
  drop_cache(choice);
  choice->finished = true;
  // Freed and counted before the reader hears of it.
  const bool last = request->all_finished();
  {
    const std::lock_guard lock(mutex_);
    scheduler_.choice_finished(request->id, choice->index);
    if (last) recorder_.request_finished(event.finish, usage.timings);
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
