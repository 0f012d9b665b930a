// Connects a request in the engine to its reader. Events go to the reader; cancellation comes back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace smartkv {

// Unread events of a choice are joined into one, so that a slow reader costs no more memory than its text.
// Thread-safe for one writer (the engine thread) and one reader.
class EventQueue {
 public:
  // cancel() also sets `any_cancelled`, after the queue's own flag. It may be null.
  explicit EventQueue(int32_t n_choices, std::shared_ptr<std::atomic<bool>> any_cancelled = nullptr);

  // The engine's side.
  void set_prompt_logprobs(std::vector<TokenLogprob> logprobs);  // REQUIRES: push() was not called yet
  // Queues an event. `usage` is what usage() returns from now on.
  void push(GenerationEvent event, const RequestUsage& usage);
  // Ends every choice that has not ended, without allocating memory. REQUIRES: `error` is a literal.
  void abort(FinishReason reason, const char* error) noexcept;
  bool cancelled() const { return cancelled_.load(); }

  // The reader's side. See GenerationStream.
  GenerationStream::Status next(GenerationEvent* event, std::chrono::milliseconds timeout);
  void cancel();
  const std::vector<TokenLogprob>& prompt_logprobs() const { return prompt_logprobs_; }
  RequestUsage usage() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<GenerationEvent> pending_;  // [n_choices]
  std::vector<bool> has_pending_;         // [n_choices]
  std::vector<bool> read_to_end_;         // [n_choices]: whether the last event was read
  std::deque<int32_t> ready_;             // choices with a pending event, longest waiting first
  int32_t unfinished_;                    // number of choices with a last event that was not read
  FinishReason aborted_ = FinishReason::kNone;
  const char* abort_error_ = "";
  RequestUsage usage_;
  std::vector<TokenLogprob> prompt_logprobs_;
  std::atomic<bool> cancelled_{false};
  std::shared_ptr<std::atomic<bool>> any_cancelled_;
};

// The handle that submit() returns.
class QueueStream final : public GenerationStream {
 public:
  explicit QueueStream(std::shared_ptr<EventQueue> queue) : queue_(std::move(queue)) {}
  ~QueueStream() override { queue_->cancel(); }
  Status next(GenerationEvent* event, std::chrono::milliseconds timeout) override {
    return queue_->next(event, timeout);
  }
  void cancel() override { queue_->cancel(); }
  const std::vector<TokenLogprob>& prompt_logprobs() const override { return queue_->prompt_logprobs(); }
  RequestUsage usage() const override { return queue_->usage(); }

 private:
  std::shared_ptr<EventQueue> queue_;
};

}  // namespace smartkv
