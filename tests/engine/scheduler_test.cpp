#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <set>

namespace smartkv {

bool operator==(const ScheduleItem& a, const ScheduleItem& b) {
  return a.request == b.request && a.choice == b.choice && a.prompt == b.prompt && a.n_tokens == b.n_tokens;
}
void PrintTo(const ScheduleItem& item, std::ostream* out) {
  *out << "{" << item.request << ", " << item.choice << (item.prompt ? ", prompt " : ", decode ") << item.n_tokens
       << "}";
}

namespace {

ScheduleItem prompt(uint64_t id, int64_t n_tokens) { return {id, 0, true, n_tokens}; }
ScheduleItem decode(uint64_t id, int32_t choice = 0) { return {id, choice, false, 1}; }

using Items = std::vector<ScheduleItem>;

Items plan(const Scheduler& scheduler, int64_t boundary = INT64_MAX) {
  Items items;
  scheduler.plan([boundary](uint64_t) { return boundary; }, &items);
  return items;
}

ScheduledRequest request(uint64_t id, int64_t prompt_tokens, int32_t n = 1, int64_t bytes = 1) {
  return {id, prompt_tokens, n, bytes};
}

TEST(Scheduler, CutsPromptsToTheTokenBudget) {
  Scheduler scheduler({.token_budget = 10, .kv_bytes = 100});
  scheduler.enqueue(request(1, 25));
  scheduler.enqueue(request(2, 3));
  EXPECT_EQ(plan(scheduler), (Items{prompt(1, 10)}));
  scheduler.prompt_advanced(1, 10);
  scheduler.prompt_advanced(1, 10);
  EXPECT_EQ(plan(scheduler), (Items{prompt(1, 5), prompt(2, 3)}));
  scheduler.prompt_advanced(1, 5);
  EXPECT_EQ(plan(scheduler), (Items{decode(1), prompt(2, 3)}));
  scheduler.prompt_advanced(2, 3);
  EXPECT_EQ(plan(scheduler), (Items{decode(1), decode(2)}));
}

TEST(Scheduler, DecodeRowsComeFirstAndPromptsStillAdvance) {
  Scheduler scheduler({.token_budget = 3, .kv_bytes = 100});
  scheduler.enqueue(request(1, 2, 4));
  scheduler.prompt_advanced(1, 2);
  scheduler.enqueue(request(2, 9));
  EXPECT_EQ(plan(scheduler), (Items{decode(1, 0), decode(1, 1), decode(1, 2), decode(1, 3), prompt(2, 1)}));
  scheduler.choice_finished(1, 2);
  scheduler.choice_finished(1, 0);
  EXPECT_EQ(plan(scheduler), (Items{decode(1, 1), decode(1, 3), prompt(2, 1)}));
}

TEST(Scheduler, ChunksEndAtBoundariesAndAtTheRequestsOwnLimit) {
  Scheduler scheduler({.token_budget = 100, .kv_bytes = 100});
  scheduler.enqueue(request(1, 80));
  scheduler.enqueue({.id = 2, .prompt_tokens = 80, .bytes_per_choice = 1, .max_chunk = 8});
  scheduler.prompt_advanced(1, 60);
  EXPECT_EQ(plan(scheduler, 64), (Items{prompt(1, 4), prompt(2, 8)}));
  EXPECT_EQ(plan(scheduler, 60), (Items{prompt(2, 8)}));  // 1 stands at its boundary
}

TEST(Scheduler, AdmitsByBytesInOrder) {
  Scheduler scheduler({.kv_bytes = 100});
  scheduler.enqueue(request(1, 5, 2, 30));
  scheduler.enqueue(request(2, 5, 1, 50));
  scheduler.enqueue(request(3, 5, 1, 1));  // would fit, but does not overtake
  EXPECT_EQ(scheduler.bytes_reserved(), 60);
  EXPECT_EQ(scheduler.n_waiting(), 2);
  EXPECT_EQ(plan(scheduler), (Items{prompt(1, 5)}));
  scheduler.prompt_advanced(1, 5);
  scheduler.choice_finished(1, 1);  // half of it is free again
  EXPECT_EQ(scheduler.bytes_reserved(), 81);
  EXPECT_EQ(plan(scheduler), (Items{decode(1, 0), prompt(2, 5), prompt(3, 5)}));
  for (const uint64_t id : {1, 2, 3}) scheduler.remove(id);
  EXPECT_EQ(scheduler.bytes_reserved(), 0);
  EXPECT_TRUE(scheduler.empty());
}

TEST(Scheduler, AdmitsBySequencesAndCountsTheQueue) {
  Scheduler scheduler({.max_sequences = 2, .max_queue = 2, .kv_bytes = 100});
  scheduler.enqueue(request(1, 5));
  scheduler.enqueue(request(2, 5, 2));
  EXPECT_FALSE(scheduler.queue_full());
  scheduler.enqueue(request(3, 5));
  EXPECT_TRUE(scheduler.queue_full());
  EXPECT_EQ(scheduler.n_running(), 1);
  scheduler.remove(2);  // while it waits
  EXPECT_EQ(scheduler.n_running(), 2);
  EXPECT_EQ(scheduler.n_waiting(), 0);
  scheduler.remove(99);
  EXPECT_EQ(plan(scheduler), (Items{prompt(1, 5), prompt(3, 5)}));
}

TEST(Scheduler, KnowsWhatCanNeverFit) {
  const Scheduler scheduler({.max_sequences = 4, .kv_bytes = 100});
  EXPECT_TRUE(scheduler.can_ever_fit(request(1, 5, 4, 25)));
  EXPECT_FALSE(scheduler.can_ever_fit(request(1, 5, 4, 26)));
  EXPECT_FALSE(scheduler.can_ever_fit(request(1, 5, 5, 1)));
  EXPECT_FALSE(scheduler.can_ever_fit(request(1, 5, 2, INT64_MAX)));
}

// A steady stream of short requests: each request, long or short, is served within a bounded number of passes.
TEST(Scheduler, NobodyStarves) {
  Scheduler scheduler({.max_sequences = 4, .max_queue = 1000, .token_budget = 4, .kv_bytes = 100});
  std::map<uint64_t, int64_t> prompt_left, output_left, enqueued;
  const auto add = [&](uint64_t id, int64_t step) {
    const bool is_long = id % 10 == 5;
    prompt_left[id] = is_long ? 40 : 2;
    output_left[id] = 3;
    enqueued[id] = step;
    scheduler.enqueue(request(id, prompt_left[id], 1, is_long ? 90 : 20));
  };
  uint64_t next = 0;
  uint64_t last_started = 0;
  for (int64_t step = 0; step < 2000; ++step) {
    if (step % 12 == 0) add(next++, step);
    const Items items = plan(scheduler);
    ASSERT_EQ(items.empty(), scheduler.empty());
    for (const ScheduleItem& item : items) {
      if (item.prompt) {
        ASSERT_GE(item.request + 4, last_started) << "overtaken";
        last_started = std::max(last_started, item.request);
        prompt_left[item.request] -= item.n_tokens;
        scheduler.prompt_advanced(item.request, item.n_tokens);
      } else if (--output_left[item.request] == 0) {
        scheduler.choice_finished(item.request, 0);
        ASSERT_LT(step - enqueued[item.request], 200);
      }
    }
  }
  EXPECT_LE(scheduler.n_waiting(), 3);
}

}  // namespace
}  // namespace smartkv
