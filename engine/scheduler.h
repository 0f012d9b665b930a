// Continuous batching: which sequences the next model pass carries, and how many tokens of each. Pure bookkeeping.
//
// A request is one sequence while its prompt is computed, then n. It is admitted, first come first served and nobody
// overtaking, once n sequences and the bytes they may grow to are free; from then on it cannot run out of memory.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace smartkv {

struct SchedulerOptions {
  int64_t max_sequences = 32;
  int64_t max_queue = 256;
  int64_t token_budget = 512;  // of one pass: decode rows first, then prompt chunks
  int64_t kv_bytes = 0;
};

struct ScheduledRequest {
  uint64_t id = 0;
  int64_t prompt_tokens = 0;
  int32_t n = 1;
  int64_t bytes_per_choice = 0;  // upper bound over its life
  int64_t max_chunk = INT64_MAX;  // of prompt tokens in one pass
};

// What one sequence contributes to a pass.
struct ScheduleItem {
  uint64_t request = 0;
  int32_t choice = 0;
  bool prompt = false;
  int64_t n_tokens = 0;  // prompt: of the chunk; decode: 1, to which speculation adds its draft
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  const SchedulerOptions& options() const { return options_; }
  // Whether the request could be admitted into an empty engine; enqueue() takes only such.
  bool can_ever_fit(const ScheduledRequest& request) const;
  bool queue_full() const { return static_cast<int64_t>(waiting_.size()) >= options_.max_queue; }
  void enqueue(const ScheduledRequest& request);

  // The next pass: every decoding choice, then prompt chunks in order of admission up to the token budget, at least one
  // token when a prompt is unfinished. `boundary(id)`: the token count that the prompt's sequence must not pass in this
  // step (SequenceCache::next_boundary); a prompt that is already there is left out.
  void plan(const std::function<int64_t(uint64_t id)>& boundary, std::vector<ScheduleItem>* items) const;

  // Results of a pass.
  void prompt_advanced(uint64_t id, int64_t n_tokens);  // with the last prompt token, all n choices decode
  void choice_finished(uint64_t id, int32_t choice);    // frees its share; the last one removes the request
  void remove(uint64_t id);                             // running or waiting; unknown ids are ignored

  bool empty() const { return running_.empty() && waiting_.empty(); }
  int64_t n_waiting() const { return static_cast<int64_t>(waiting_.size()); }  // requests
  int64_t n_running() const { return sequences_; }                            // sequences, reserved ones included
  int64_t bytes_reserved() const { return bytes_; }

 private:
  struct Running {
    ScheduledRequest request;
    int64_t computed = 0;                // prompt tokens
    std::vector<int32_t> active;         // choices that have not finished
  };

  void admit();
  void release(const ScheduledRequest& request, int64_t choices);
  std::vector<Running>::iterator find(uint64_t id);

  SchedulerOptions options_;
  std::deque<ScheduledRequest> waiting_;
  std::vector<Running> running_;  // in order of admission
  int64_t sequences_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace smartkv
