#include "engine/event_queue.h"

#include <iterator>

namespace smartkv {

EventQueue::EventQueue(int32_t n_choices, std::shared_ptr<std::atomic<bool>> any_cancelled)
    : pending_(static_cast<size_t>(n_choices)),
      has_pending_(static_cast<size_t>(n_choices), false),
      read_to_end_(static_cast<size_t>(n_choices), false),
      unfinished_(n_choices),
      any_cancelled_(std::move(any_cancelled)) {}

void EventQueue::cancel() {
  cancelled_.store(true);
  if (any_cancelled_ != nullptr) any_cancelled_->store(true);
}

void EventQueue::abort(FinishReason reason, const char* error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = reason;
    abort_error_ = error;
  }
  wake_.notify_one();
}

void EventQueue::set_prompt_logprobs(std::vector<TokenLogprob> logprobs) {
  const std::lock_guard lock(mutex_);
  prompt_logprobs_ = std::move(logprobs);
}

void EventQueue::push(GenerationEvent event, const RequestUsage& usage) {
  {
    const std::lock_guard lock(mutex_);
    usage_ = usage;
    const auto choice = static_cast<size_t>(event.choice);
    GenerationEvent& pending = pending_[choice];
    if (has_pending_[choice]) {
      pending.text += event.text;
      for (DraftRound& round : event.drafts) round.first += static_cast<int64_t>(pending.tokens.size());
      std::ranges::move(event.drafts, std::back_inserter(pending.drafts));
      std::ranges::move(event.tokens, std::back_inserter(pending.tokens));
      std::ranges::move(event.logprobs, std::back_inserter(pending.logprobs));
      pending.finish = event.finish;
      pending.error = std::move(event.error);
      pending.stop_string = std::move(event.stop_string);
    } else {
      ready_.push_back(event.choice);
      has_pending_[choice] = true;
      pending = std::move(event);
    }
  }
  wake_.notify_one();
}

GenerationStream::Status EventQueue::next(GenerationEvent* event, std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24);  // a longer wait would overflow the clock
  std::unique_lock lock(mutex_);
  if (unfinished_ == 0) return GenerationStream::Status::kEnd;
  const bool woken = wake_.wait_for(lock, std::min(timeout, kLongest),
                                    [this] { return !ready_.empty() || aborted_ != FinishReason::kNone; });
  if (!woken) return GenerationStream::Status::kTimeout;
  if (ready_.empty()) {
    const auto choice = std::find(read_to_end_.begin(), read_to_end_.end(), false);
    *event = {};
    event->choice = static_cast<int32_t>(choice - read_to_end_.begin());
    event->finish = aborted_;
    event->error = abort_error_;
    *choice = true;
    --unfinished_;
    return GenerationStream::Status::kEvent;
  }
  const auto choice = static_cast<size_t>(ready_.front());
  ready_.pop_front();
  has_pending_[choice] = false;
  *event = std::exchange(pending_[choice], {});
  if (event->finish != FinishReason::kNone) {
    read_to_end_[choice] = true;
    --unfinished_;
  }
  return GenerationStream::Status::kEvent;
}

RequestUsage EventQueue::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

}  // namespace smartkv
