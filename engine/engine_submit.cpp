// The engine's side that any thread may call: checks, queueing, and what it tells of itself.
#include <algorithm>
#include <random>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/request_checks.h"

namespace smartkv {
namespace {

// Prompt log probabilities need a row of logits per token: short chunks bound that memory.
constexpr int64_t kLogprobChunk = 64;
constexpr size_t kMaxCachedPolicies = 64;

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

std::shared_ptr<const KvCachePolicy> EngineImpl::policy_for(const nlohmann::json& spec) const {
  const nlohmann::json& chosen = spec.is_null() ? parts_.options.kv_cache : spec;
  const std::string key = chosen.dump();
  const std::lock_guard lock(policies_mutex_);
  if (const auto known = policies_.find(key); known != policies_.end()) return known->second;
  try {
    std::shared_ptr<const KvCachePolicy> policy = make_policy(policy_context_, chosen);
    if (policies_.size() >= kMaxCachedPolicies) policies_.clear();  // requests keep their own
    return policies_[key] = std::move(policy);
  } catch (const CacheError& error) {
    throw RequestError(RequestError::Kind::kInvalid, "kv_cache", error.what());
  }
}

std::shared_ptr<const Speculation> EngineImpl::speculation_for(const nlohmann::json& field) const {
  const nlohmann::json& chosen = field.is_null() ? parts_.options.speculative : field;
  const std::string key = chosen.dump();
  const std::lock_guard lock(policies_mutex_);
  if (const auto known = speculations_.find(key); known != speculations_.end()) return known->second;
  std::shared_ptr<const Speculation> speculation = speculator_.prepare(parse_speculation(chosen));
  if (speculations_.size() >= kMaxCachedPolicies) speculations_.clear();  // requests keep their own
  return speculations_[key] = std::move(speculation);
}

EngineImpl::Checked EngineImpl::check(const GenerationRequest& request) const {
  check_request(request, {vocabulary_, context_length(), parts_.options.max_sequences});
  Checked checked;
  checked.policy = policy_for(request.kv_cache);
  checked.speculation = speculation_for(request.speculative);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t tokens = prompt_tokens + std::min(request.max_tokens, context_length() - prompt_tokens);
  checked.scheduled.prompt_tokens = prompt_tokens;
  checked.scheduled.n = request.n;
  checked.scheduled.bytes_per_choice = checked.policy->max_bytes(prompt_tokens, tokens);
  if (checked.speculation != nullptr && checked.speculation->policy != nullptr) {
    checked.scheduled.bytes_per_choice += checked.speculation->policy->max_bytes(prompt_tokens, tokens);
  }
  if (request.prompt_logprobs >= 0) checked.scheduled.max_chunk = kLogprobChunk;
  if (!scheduler_.can_ever_fit(checked.scheduled)) {
    throw RequestError(RequestError::Kind::kTooLarge, "max_tokens",
                       "the request may need " + std::to_string(request.n) + " x " +
                           std::to_string(checked.scheduled.bytes_per_choice) + " bytes of KV cache (n = " +
                           std::to_string(request.n) + " choices of " + std::to_string(prompt_tokens) + " prompt and " +
                           std::to_string(tokens - prompt_tokens) + " output tokens, policy \"" +
                           std::string(checked.policy->name()) + "\"), but the server has " +
                           std::to_string(parts_.options.kv_cache_bytes) + " bytes (kv_cache_bytes)");
  }
  return checked;
}

void EngineImpl::check_load() const {
  if (draining_) {
    throw RequestError(RequestError::Kind::kDraining, "", "the server is shutting down and takes no more requests");
  }
  if (scheduler_.queue_full()) {
    throw RequestError(RequestError::Kind::kOverloaded, "",
                       "the server is busy: " + std::to_string(scheduler_.n_waiting()) +
                           " requests wait already, the most that max_queue allows",
                       recorder_.retry_after_s(scheduler_.n_running()));
  }
}

void EngineImpl::validate(const GenerationRequest& request) const {
  try {
    check(request);
    const std::lock_guard lock(mutex_);
    check_load();
  } catch (const RequestError&) {
    ++rejected_;
    throw;
  }
}

std::unique_ptr<GenerationStream> Engine::submit(GenerationRequest request) {
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  return std::move(submit_all(std::move(requests)).front());
}

std::vector<std::unique_ptr<GenerationStream>> EngineImpl::submit_all(std::vector<GenerationRequest> generations) {
  try {
    std::vector<std::shared_ptr<Request>> requests;
    std::vector<ScheduledRequest> scheduled;
    for (GenerationRequest& generation : generations) {
      Checked checked = check(generation);
      requests.push_back(std::make_shared<Request>(std::move(generation), 0, eos_, *parts_.tokenizer, context_length(),
                                                   std::move(checked.policy), std::move(checked.speculation),
                                                   random_seed()));
      scheduled.push_back(checked.scheduled);
    }
    queue(requests, scheduled);
    work_.notify_one();
    std::vector<std::unique_ptr<GenerationStream>> streams;
    for (const auto& request : requests) streams.push_back(std::make_unique<QueueStream>(request->events));
    return streams;
  } catch (const RequestError&) {
    ++rejected_;
    throw;
  }
}

void EngineImpl::queue(std::span<const std::shared_ptr<Request>> requests, std::span<ScheduledRequest> scheduled) {
  const std::lock_guard lock(mutex_);
  size_t n = 0;
  try {
    for (; n < requests.size(); ++n) {
      check_load();
      requests[n]->id = scheduled[n].id = next_id_++;
      requests_.emplace(requests[n]->id, requests[n]);
      scheduler_.enqueue(scheduled[n]);
    }
  } catch (const RequestError&) {
    for (const ScheduledRequest& queued : scheduled.first(n)) {
      scheduler_.remove(queued.id);
      requests_.erase(queued.id);
    }
    throw;
  }
}

nlohmann::ordered_json EngineImpl::describe() const {
  nlohmann::ordered_json result = parts_.description;
  result["context_length"] = context_length();
  result["vocab_size"] = vocabulary_;
  result["eos_token_ids"] = eos_;
  result["weight_bytes"] = parts_.model->weight_bytes();
  if (parts_.int4_model != nullptr) result["int4_weight_bytes"] = parts_.int4_model->weight_bytes();
  result["kv_cache_bytes"] = parts_.options.kv_cache_bytes;
  result["kv_cache_bytes_per_token"] = parts_.cache_shape.bytes_per_token();
  result["kv_cache"] = policy_for(nullptr)->name();
  result["speculative"] = speculation_for(nullptr) == nullptr ? "off" : name(speculation_for(nullptr)->spec.method);
  result["max_sequences"] = parts_.options.max_sequences;
  result["max_queue"] = parts_.options.max_queue;
  result["prefill_chunk"] = parts_.options.prefill_chunk;
  result["policies"] = nlohmann::ordered_json::array();
  for (const PolicyRow& row : policy_registry()) result["policies"].push_back(row.name);
  return result;
}

EngineStats EngineImpl::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = recorder_.stats;
  stats.requests_running = scheduler_.n_running();
  stats.requests_waiting = scheduler_.n_waiting();
  stats.kv_bytes_used = kv_bytes_used_;
  stats.kv_bytes_reserved = scheduler_.bytes_reserved();
  stats.kv_bytes_budget = parts_.options.kv_cache_bytes;
  stats.rejected = rejected_;
  return stats;
}

void EngineImpl::drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  idle_.wait(lock, [this] { return requests_.empty(); });
}

void EngineImpl::stop() {
  std::unique_lock lock(mutex_);
  draining_ = cancel_all_ = true;
  idle_.wait(lock, [this] { return requests_.empty(); });
}

bool EngineImpl::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

}  // namespace smartkv
