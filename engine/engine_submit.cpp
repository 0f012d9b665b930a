// The functions that any thread may call: they queue requests, read statistics and stop the engine.
#include "engine/engine_impl.h"

namespace smartkv {

void EngineImpl::check_load(int64_t more) const {
  if (const std::string why = lost(); !why.empty()) throw RequestError(RequestError::Kind::kLost, "", why);
  if (draining_) {
    throw RequestError(RequestError::Kind::kDraining, "", "the server is shutting down and accepts no more requests");
  }
  const int64_t waiting = waiting_ + static_cast<int64_t>(submitted_.size()) + more;
  const int64_t starting = std::max<int64_t>(0, parts_.options.max_sequences - running_);
  if (waiting >= parts_.options.max_queue + starting) {
    throw RequestError(
        RequestError::Kind::kOverloaded, "",
        "the server is busy: " + std::to_string(waiting) + " requests are waiting, the limit of max_queue",
        recorder_.retry_after_s(running_));
  }
}

void EngineImpl::validate(const GenerationRequest& request) const {
  try {
    admission_.check(request);
    const std::lock_guard lock(mutex_);
    check_load(0);
  } catch (const RequestError& error) {
    const std::lock_guard lock(mutex_);
    ++recorder_.stats.rejected[std::string(name(error.kind))];
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
    std::vector<std::unique_ptr<GenerationStream>> streams;
    for (GenerationRequest& generation : generations) {
      requests.push_back(admission_.admit(std::move(generation), any_cancelled_));
      streams.push_back(std::make_unique<QueueStream>(requests.back()->events));
    }
    {
      const std::lock_guard lock(mutex_);
      for (size_t i = 0; i < requests.size(); ++i) check_load(static_cast<int64_t>(i));
      const Clock::time_point now = Clock::now();  // the same for all of them, so that their timings can be compared
      for (const auto& request : requests) {
        request->submitted = now;
        request->id = next_id_++;
        submitted_.push_back(request);
        ++live_;
      }
    }
    work_.notify_one();
    return streams;
  } catch (const RequestError& error) {
    const std::lock_guard lock(mutex_);
    ++recorder_.stats.rejected[std::string(name(error.kind))];
    throw;
  }
}

EngineStats EngineImpl::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = recorder_.stats;
  stats.requests_running = running_;
  stats.requests_waiting = waiting_ + static_cast<int64_t>(submitted_.size());
  const int64_t all = cache_bytes();
  stats.kv_bytes_used = stats.prefix_cache_states > 0 ? std::min(all, held_) : all;
  stats.prefix_cache_bytes = std::min(stats.prefix_cache_bytes, all - stats.kv_bytes_used);
  stats.kv_bytes_budget = parts_.options.kv_cache_bytes;
  if (offload_context_.pool != nullptr) {
    stats.kv_offload_bytes_used = offload_context_.pool->bytes_in_use();
    stats.kv_offload_bytes_budget = parts_.options.kv_offload_bytes;
  }
  return stats;
}

void EngineImpl::drain() {
  admission_.stop();  // requests that wait for a grammar are not queued yet
  std::unique_lock lock(mutex_);
  draining_ = true;
  idle_.wait(lock, [this] { return live_ == 0; });
}

void EngineImpl::stop() {
  admission_.stop();
  std::unique_lock lock(mutex_);
  draining_ = cancel_all_ = true;
  idle_.wait(lock, [this] { return live_ == 0; });
}

bool EngineImpl::draining() const {
  const std::lock_guard lock(mutex_);
  return draining_;
}

}  // namespace smartkv
