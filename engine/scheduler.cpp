#include "engine/scheduler.h"

#include <algorithm>
#include <numeric>

namespace smartkv {

bool Scheduler::can_ever_fit(const ScheduledRequest& request) const {
  return request.n <= options_.max_sequences && request.bytes_per_choice <= options_.kv_bytes / request.n;
}

void Scheduler::enqueue(const ScheduledRequest& request) {
  waiting_.push_back(request);
  admit();
}

void Scheduler::admit() {
  while (!waiting_.empty()) {
    const ScheduledRequest& next = waiting_.front();
    const int64_t bytes = next.bytes_per_choice * next.n;
    if (sequences_ + next.n > options_.max_sequences || bytes_ + bytes > options_.kv_bytes) return;
    sequences_ += next.n;
    bytes_ += bytes;
    Running running{next, 0, std::vector<int32_t>(static_cast<size_t>(next.n))};
    std::iota(running.active.begin(), running.active.end(), 0);
    running_.push_back(std::move(running));
    waiting_.pop_front();
  }
}

void Scheduler::plan(const std::function<int64_t(uint64_t id)>& boundary, std::vector<ScheduleItem>* items) const {
  items->clear();
  for (const Running& running : running_) {
    if (running.computed < running.request.prompt_tokens) continue;
    for (const int32_t choice : running.active) items->push_back({running.request.id, choice, false, 1});
  }
  // At least one: prompts advance however many sequences decode.
  int64_t budget = std::max<int64_t>(1, options_.token_budget - static_cast<int64_t>(items->size()));
  for (const Running& running : running_) {
    if (budget == 0) break;
    const ScheduledRequest& request = running.request;
    const int64_t left = request.prompt_tokens - running.computed;
    if (left == 0) continue;
    const int64_t n = std::min({left, budget, request.max_chunk, boundary(request.id) - running.computed});
    if (n <= 0) continue;
    items->push_back({request.id, 0, true, n});
    budget -= n;
  }
}

void Scheduler::prompt_advanced(uint64_t id, int64_t n_tokens) { find(id)->computed += n_tokens; }

void Scheduler::choice_finished(uint64_t id, int32_t choice) {
  const auto at = find(id);
  std::erase(at->active, choice);
  release(at->request, 1);
  if (at->active.empty()) running_.erase(at);
  admit();
}

void Scheduler::remove(uint64_t id) {
  if (const auto at = find(id); at != running_.end()) {
    release(at->request, static_cast<int64_t>(at->active.size()));
    running_.erase(at);
  } else {
    std::erase_if(waiting_, [id](const ScheduledRequest& request) { return request.id == id; });
  }
  admit();
}

void Scheduler::release(const ScheduledRequest& request, int64_t choices) {
  sequences_ -= choices;
  bytes_ -= choices * request.bytes_per_choice;
}

std::vector<Scheduler::Running>::iterator Scheduler::find(uint64_t id) {
  return std::find_if(running_.begin(), running_.end(), [id](const Running& r) { return r.request.id == id; });
}

}  // namespace smartkv
