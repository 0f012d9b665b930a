#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stdexcept>

namespace smartkv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// A sequence with a cache of `bytes_per_token` in a memory that all sequences share.
class FakeSequence final : public ScheduledSequence {
 public:
  FakeSequence(int64_t* used, int64_t prompt, int64_t output, int64_t bytes_per_token = 1)
      : tokens(prompt), end(prompt + output), used_(used), bytes_per_token_(bytes_per_token) {}

  int64_t computed() const override { return computed_; }
  int64_t left() const override { return tokens - computed_; }
  int64_t pass_limit() const override { return boundary - computed_; }
  int64_t max_growth(int64_t n) const override { return n == 0 ? 0 : n * bytes_per_token_ + for_a_pass; }
  int64_t held() const override { return computed_ * bytes_per_token_; }
  int64_t offloaded() const override { return apart; }
  int64_t bytes_ahead(int64_t beyond) const override { return std::min(tokens + beyond, end) * bytes_per_token_; }
  int64_t growth_ahead(int64_t beyond) const override {
    ++questions;
    return std::max<int64_t>(0, bytes_ahead(beyond) - (computed_ == 0 ? prefix.bytes : held())) + shared_once;
  }
  int64_t logit_rows(int64_t n) const override { return row_for_each_token ? n : ScheduledSequence::logit_rows(n); }
  Known known() const override {
    ++questions;
    return computed_ == 0 ? prefix : Known{};
  }
  void begin() override {
    if (fails) throw std::runtime_error("no cache");
  }
  void drop() override {
    *used_ -= held();
    computed_ = 0;
  }

  // Runs a pass of n tokens. If it reaches the end of the known tokens, a token is sampled.
  void pass(int64_t n) {
    *used_ += n * bytes_per_token_;
    computed_ += n;
    if (left() == 0) ++tokens;
  }
  bool finished() const { return tokens > end; }
  bool decodes() const { return computed_ > 0 && left() == 1; }

  int64_t tokens, end;
  Known prefix;
  int64_t shared_once = 0, for_a_pass = 0, apart = 0;  // bytes
  int64_t boundary = INT64_MAX;
  bool fails = false, row_for_each_token = false;
  static inline int64_t questions = 0;  // calls of known() and growth_ahead() of all sequences

 private:
  int64_t* used_;
  int64_t bytes_per_token_;
  int64_t computed_ = 0;
};

class SchedulerTest : public ::testing::Test {
 protected:
  FakeSequence* add(uint64_t ticket, int64_t prompt, int64_t output = 1000, int64_t slots = 1,
                    int64_t bytes_per_token = 1) {
    sequences_[ticket] = std::make_unique<FakeSequence>(&used_, prompt, output, bytes_per_token);
    scheduler().enqueue(sequences_[ticket].get(), ticket, slots);
    return sequences_[ticket].get();
  }
  Scheduler& scheduler() {
    if (!scheduler_) scheduler_ = std::make_unique<Scheduler>(options);
    return *scheduler_;
  }
  uint64_t ticket_of(const ScheduledSequence* sequence) const {
    for (const auto& [ticket, own] : sequences_) {
      if (own.get() == sequence) return ticket;
    }
    return UINT64_MAX;
  }

  using Items = std::vector<std::pair<uint64_t, int64_t>>;  // ticket, tokens
  Items plan() {
    Scheduler::Memory memory;
    memory.free = [this] { return budget - used_; };
    memory.offload = 100;
    scheduler().plan(memory, &plan_);
    Items items;
    for (const Scheduler::Item& item : plan_.items) items.emplace_back(ticket_of(item.sequence), item.n_tokens);
    return items;
  }
  // Plans a pass and runs it.
  Items step() {
    Items items = plan();
    for (const Scheduler::Item& item : plan_.items) {
      auto* sequence = static_cast<FakeSequence*>(item.sequence);
      sequence->pass(item.n_tokens);
      EXPECT_LE(used_, budget);
      if (sequence->finished()) end(sequence);
    }
    return items;
  }
  void end(FakeSequence* sequence) {
    scheduler().remove(sequence);
    sequence->drop();
  }
  std::vector<uint64_t> tickets_of(const std::vector<ScheduledSequence*>& sequences) const {
    std::vector<uint64_t> tickets;
    for (const ScheduledSequence* sequence : sequences) tickets.push_back(ticket_of(sequence));
    return tickets;
  }
  std::vector<uint64_t> preempted() const {
    std::vector<uint64_t> tickets;
    for (const Scheduler::Preemption& preemption : plan_.preempted) tickets.push_back(ticket_of(preemption.sequence));
    return tickets;
  }

  SchedulerOptions options{.max_sequences = 8, .token_budget = 16, .horizon = 4, .known_horizon = 4};
  int64_t budget = 1'000'000;
  int64_t used_ = 0;
  std::map<uint64_t, std::unique_ptr<FakeSequence>> sequences_;
  std::unique_ptr<Scheduler> scheduler_;
  Scheduler::Plan plan_;
};

TEST_F(SchedulerTest, CutsPromptsToTheBudgetInOrderOfAge) {
  add(1, 25);
  add(2, 30);
  EXPECT_THAT(step(), ElementsAre(Pair(1, 16)));
  EXPECT_THAT(step(), ElementsAre(Pair(1, 9), Pair(2, 7)));
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(2, 15)));
}

TEST_F(SchedulerTest, DecodeRowsComeFirstAndPromptsStillAdvance) {
  options.token_budget = 3;
  for (uint64_t i = 0; i < 4; ++i) add(i, 1);
  EXPECT_THAT(step(), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 1), Pair(3, 1)));
  add(4, 9);
  EXPECT_THAT(step(), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 1), Pair(3, 1), Pair(4, 1)));
}

TEST_F(SchedulerTest, ContextCostsItsShareOfTheBudget) {
  options.attention_tokens = 100;
  options.token_budget = 40;
  add(1, 1000);
  EXPECT_THAT(step(), ElementsAre(Pair(1, 34)));  // 34 + 34 * 34 / 200 = 39.8
  for (int i = 0; i < 20; ++i) step();
  const int64_t depth = sequences_[1]->computed(), n = plan()[0].second;
  EXPECT_LE(n + n * (2 * depth + n) / 200, 40);
  EXPECT_GT(n + 1 + (n + 1) * (2 * depth + n + 1) / 200, 40);
}

TEST_F(SchedulerTest, ChunksEndAtThePassLimit) {
  add(1, 80)->boundary = 4;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 4)));
  sequences_[1]->boundary = 64;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 16)));
}

TEST_F(SchedulerTest, AShortPromptWaitsForNoLongOne) {
  add(1, 200);
  step();
  add(2, 5);
  add(3, 190);                                               // not shorter than the rest of the oldest
  EXPECT_THAT(step(), ElementsAre(Pair(1, 5), Pair(2, 5)));  // the oldest does as much as those that overtake it
  EXPECT_THAT(step(), ElementsAre(Pair(1, 15), Pair(2, 1)));
}

TEST_F(SchedulerTest, TheOldestPromptKeepsHalfOfTheWork) {
  add(1, 400);
  step();
  int64_t steps = 1;
  for (uint64_t next = 2; sequences_[1]->left() > 1; ++steps) {
    add(next++, 8);  // a stream of short prompts
    step();
    for (auto& [ticket, sequence] : sequences_) {
      if (ticket > 1 && sequence->decodes()) end(sequence.get());
    }
    ASSERT_LT(steps, 60);
  }
}

TEST_F(SchedulerTest, MemoryFollowsTokens) {
  budget = 100;
  add(1, 10, 70);  // each may grow to 80, both together to 160
  add(2, 10, 70);
  EXPECT_THAT(step(), ElementsAre(Pair(1, 10), Pair(2, 6)));
  step();
  EXPECT_EQ(scheduler().n_running(), 2);
}

TEST_F(SchedulerTest, WhenMemoryRunsOutTheYoungestIsComputedAnewLater) {
  budget = 100;
  add(1, 10, 70);
  add(2, 10, 70);
  std::vector<uint64_t> lost;
  int64_t steps = 0;
  while (!sequences_[1]->finished() || !sequences_[2]->finished()) {
    step();
    for (const uint64_t ticket : preempted()) lost.push_back(ticket);
    ASSERT_FALSE(plan_.stuck);
    ASSERT_LT(++steps, 400);
  }
  ASSERT_FALSE(lost.empty());
  EXPECT_THAT(lost, ::testing::Each(2u));
  EXPECT_LE(lost.size(), 4u);  // each preemption doubles the room that admission looks for
  EXPECT_EQ(used_, 0);
}

TEST_F(SchedulerTest, WhatIsOffloadedIsHeldFromTheBeginningToTheEnd) {
  add(1, 4, 2, 2)->apart = 30;  // out of 100, for each of two slots
  add(2, 4)->apart = 41;
  add(3, 4)->apart = 40;
  add(4, 4);
  EXPECT_THAT(step(), ElementsAre(Pair(1, 4), Pair(3, 4), Pair(4, 4)));
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(3, 1), Pair(4, 1)));
  while (!sequences_[1]->finished()) step();
  EXPECT_THAT(step(), ElementsAre(Pair(2, 4), Pair(3, 1), Pair(4, 1)));
}

TEST_F(SchedulerTest, OneThatFitsPassesOneThatDoesNotButNobodyStarves) {
  budget = 100;
  add(0, 1, 60);
  step();
  add(1, 95, 5);
  EXPECT_EQ(scheduler().n_waiting(), 1);
  int64_t passed = 0;
  uint64_t next = 2;
  for (int64_t step_number = 0; sequences_[1]->computed() == 0; ++step_number) {
    ASSERT_LT(step_number, 400);
    add(next++, 2, 2);
    step();
    for (const ScheduledSequence* admitted : plan_.admitted) passed += ticket_of(admitted) > 1 ? 1 : 0;
  }
  EXPECT_GT(passed, 0);
  EXPECT_LE(passed, Scheduler::kMostOvertakes);
}

TEST_F(SchedulerTest, ThoseThatGoOnFromWhatIsKnownGoFirst) {
  budget = 100;
  add(0, 60, 4);
  step();
  add(1, 60, 4);
  add(2, 60, 4)->prefix = {50, 50};  // takes 10 bytes and its horizon
  while (sequences_[0]->left() > 1) step();
  EXPECT_GT(sequences_[2]->computed(), 0);
  EXPECT_EQ(sequences_[1]->computed(), 0);
}

TEST_F(SchedulerTest, ToBePassedByThoseThatGoOnFromWhatIsKnownCountsAQuarter) {
  budget = 100;
  add(0, 1, 80);
  step();
  add(1, 95, 5);
  int64_t passed = 0;
  uint64_t next = 2;
  for (int64_t step_number = 0; sequences_[1]->computed() == 0; ++step_number) {
    ASSERT_LT(step_number, 400);
    add(next++, 2, 2)->prefix = {1, 1};
    step();
    for (const ScheduledSequence* admitted : plan_.admitted) passed += ticket_of(admitted) > 1 ? 1 : 0;
  }
  EXPECT_GT(passed, Scheduler::kMostOvertakes);
  EXPECT_LE(passed, 4 * Scheduler::kMostOvertakes);
}

TEST_F(SchedulerTest, WhatOthersWaitForGoesOnlyForThoseThatRunAndThoseThatWaitedLongEnough) {
  budget = 20;
  using Evict = PrefixCache::Evict;
  std::vector<Evict> asked;
  const auto admitted = [&] {
    Scheduler::Memory memory;
    memory.free = [this] { return budget - used_; };
    memory.offload = 100;
    memory.reclaim = [&](Evict which) {
      asked.push_back(which);
      return false;
    };
    scheduler().plan(memory, &plan_);
    for (const Scheduler::Item& item : plan_.items) static_cast<FakeSequence*>(item.sequence)->pass(item.n_tokens);
    return plan_.admitted.size();
  };
  add(0, 10, 8);
  EXPECT_EQ(admitted(), 1u);
  EXPECT_THAT(asked, IsEmpty());
  add(1, 15, 2);
  EXPECT_EQ(admitted(), 0u);
  EXPECT_THAT(asked, ElementsAre(Evict::kUnheld));
  asked.clear();
  used_ = budget;
  admitted();
  EXPECT_THAT(asked, ElementsAre(Evict::kUnheld, Evict::kUnused, Evict::kAny));
}

TEST_F(SchedulerTest, WhatOthersWaitForStaysWhileOlderOnesGoOn) {
  options.most_deferred = 0;
  add(1, 4, 30);
  add(2, 4, 30);
  step();
  sequences_[2]->for_a_pass = 10;
  budget = used_ + 2;
  using Evict = PrefixCache::Evict;
  std::vector<Evict> asked;
  Scheduler::Memory memory;
  memory.free = [&] { return budget - used_; };
  memory.reclaim = [&](Evict which) {
    asked.push_back(which);
    return false;
  };
  scheduler().plan(memory, &plan_);
  EXPECT_THAT(tickets_of({plan_.items[0].sequence}), ElementsAre(1));
  EXPECT_EQ(plan_.items.size(), 1u);
  EXPECT_THAT(asked, ElementsAre(Evict::kUnheld, Evict::kUnused));
}

TEST_F(SchedulerTest, ThoseThatShareWithMostOfTheRunningGoFirst) {
  options.max_sequences = 3;
  add(1, 4)->prefix = {2, 2, 0};
  add(2, 4)->prefix = {2, 2, 1};
  add(3, 4)->prefix = {2, 2, 2};
  add(4, 4)->prefix = {2, 2, 2};
  add(5, 4);
  step();
  EXPECT_THAT(tickets_of(plan_.admitted), ElementsAre(3, 4, 2));
}

TEST_F(SchedulerTest, WhatNobodyRunsWithMakesRoomForThoseThatShare) {
  budget = 30;
  add(1, 4, 4);
  step();
  FakeSequence* const shares = add(2, 24, 4);
  shares->prefix = {20, 20, 1};
  int64_t kept = 25;  // by a state from which other sequences wait to resume
  Scheduler::Memory memory;
  memory.free = [&] { return budget - used_ - kept; };
  memory.reclaim = [&](PrefixCache::Evict which) {
    if (which == PrefixCache::Evict::kUnheld || kept == 0) return false;
    kept = 0;
    return true;
  };
  scheduler().plan(memory, &plan_);
  EXPECT_THAT(plan_.admitted, ElementsAre(shares));
  EXPECT_EQ(kept, 0);
}

TEST_F(SchedulerTest, AnotherTextWaitsForMemoryThatThoseOfThisOneWillTake) {
  options.token_budget = 100;
  budget = 60;
  add(1, 20, 2);  // computes the prefix for which 2 and 4 wait
  add(2, 22, 2);
  add(3, 22, 2);  // fits, but not beside the others
  add(4, 22, 2);
  Scheduler::Memory memory;
  memory.free = [&] { return budget - used_; };
  memory.waits = [&](ScheduledSequence* sequence) -> std::optional<int64_t> {
    const bool computing = sequences_[1]->computed() < 20;
    if (!computing || (ticket_of(sequence) != 2 && ticket_of(sequence) != 4)) return std::nullopt;
    return 10;  // out of the 24 that each needs
  };
  scheduler().plan(memory, &plan_);
  EXPECT_THAT(plan_.admitted, ElementsAre(sequences_[1].get()));
  budget = 80;
  scheduler().plan(memory, &plan_);
  EXPECT_THAT(plan_.admitted, ElementsAre(sequences_[3].get()));
}

// 2 waits for a prefix that 1 is computing, and 3 could start now.
TEST_F(SchedulerTest, MemoryIsSetAsideForAWaitingPrefixHitAlsoFromSequencesWithoutOne) {
  options.token_budget = 100;
  Scheduler::Memory memory;
  memory.free = [&] { return budget - used_; };
  memory.waits = [&](ScheduledSequence* sequence) -> std::optional<int64_t> {
    return ticket_of(sequence) == 2 ? std::optional<int64_t>(10) : std::nullopt;
  };
  add(1, 20, 2);
  scheduler().plan(memory, &plan_);
  add(2, 22, 2)->prefix = {4, 0, 0};  // has a part of the prefix already
  add(3, 22, 2);
  budget = 22 + 24 + (24 - 10) - 1;  // the needs of 1 and 3, and of 2 without the bytes that it will share
  scheduler().plan(memory, &plan_);
  EXPECT_THAT(plan_.admitted, IsEmpty());
  ++budget;
  scheduler().plan(memory, &plan_);
  EXPECT_THAT(plan_.admitted, ElementsAre(sequences_[3].get()));
}

TEST_F(SchedulerTest, APrefixHitTakesMemoryThatIsSetAsideForASequenceWithoutOne) {
  options.token_budget = 100;
  Scheduler::Memory memory;
  memory.free = [&] { return budget - used_; };
  memory.waits = [&](ScheduledSequence* sequence) -> std::optional<int64_t> {
    return ticket_of(sequence) == 2 ? std::optional<int64_t>(10) : std::nullopt;
  };
  add(1, 20, 2);
  scheduler().plan(memory, &plan_);
  add(2, 22, 2);
  add(3, 22, 2)->prefix = {4, 0, 0};
  budget = 22 + 24;  // the needs of 1 and 3
  scheduler().plan(memory, &plan_);
  EXPECT_THAT(plan_.admitted, ElementsAre(sequences_[3].get()));
}

TEST_F(SchedulerTest, ThoseThatGoOnFromWhatIsKnownStartWithMoreRoom) {
  options.known_horizon = 12;
  add(1, 4, 30);
  step();
  FakeSequence* const goes_on = add(2, 10, 30);
  goes_on->prefix = {8, 8, 0};
  used_ += 8;                           // the known prefix
  budget = used_ + 13 + (10 + 12 - 8);  // the first one's next token and horizon, and the other's need
  --budget;
  plan();
  EXPECT_THAT(plan_.admitted, IsEmpty());
  ++budget;
  plan();
  EXPECT_THAT(plan_.admitted, ElementsAre(goes_on));
}

TEST_F(SchedulerTest, WhatRunningOnesWillNoLongerShareCountsAtAdmission) {
  FakeSequence* const shares = add(1, 4, 30);
  step();
  shares->shared_once = 10;
  add(2, 4, 30);
  // The first one's next token and horizon, its copies of shared pages, and the other's prompt and horizon.
  budget = used_ + 5 + 10 + 8;
  --budget;
  plan();
  EXPECT_THAT(plan_.admitted, IsEmpty());
  ++budget;
  plan();
  EXPECT_THAT(tickets_of(plan_.admitted), ElementsAre(2));
}

TEST_F(SchedulerTest, WhereMemoryLacksForAPassAYoungerOneLetsItGoByBeforeSomebodyIsDropped) {
  options.most_deferred = 2;
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) add(ticket, 4, 30);
  step();
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) sequences_[ticket]->for_a_pass = 5;
  budget = used_ + 2 * 6;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(2, 1)));
  sequences_[1]->for_a_pass = sequences_[2]->for_a_pass = 0;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 1)));
  EXPECT_THAT(preempted(), IsEmpty());

  // Now the memory does not come.
  std::swap(sequences_[2]->for_a_pass, sequences_[3]->for_a_pass);
  for (int32_t pass = 0; pass < options.most_deferred; ++pass) {
    budget = used_ + 3;
    EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(3, 1)));
    EXPECT_THAT(preempted(), IsEmpty());
  }
  budget = used_ + 3;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(2, 1)));
  EXPECT_THAT(preempted(), ElementsAre(3));
  EXPECT_NE(ticket_of(plan_.preempted[0].needed_by), 3u);
  EXPECT_GT(plan_.preempted[0].needed, plan_.preempted[0].free);
}

TEST_F(SchedulerTest, NobodyPassesASequenceThatLostItsMemory) {
  budget = 100;
  add(1, 10, 90);
  add(2, 10, 60);
  while (preempted().empty()) step();
  add(3, 1, 1);
  step();
  EXPECT_THAT(plan_.admitted, IsEmpty());
}

TEST_F(SchedulerTest, ChoicesTakeTheSlotsOfTheirRequest) {
  options.max_sequences = 3;
  FakeSequence* parent = add(1, 4, 10, 2);
  add(2, 4, 10, 2);
  add(3, 4, 10, 1);
  EXPECT_THAT(step(), ElementsAre(Pair(1, 4), Pair(3, 4)));  // 2 needs two slots
  EXPECT_EQ(scheduler().n_running(), 3);
  sequences_[4] = std::make_unique<FakeSequence>(&used_, 5, 10);
  sequences_[4]->pass(4);
  scheduler().fork(parent, sequences_[4].get());
  EXPECT_EQ(scheduler().n_running(), 3);
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(4, 1), Pair(3, 1)));
  end(parent);
  EXPECT_EQ(scheduler().n_running(), 2);
}

TEST_F(SchedulerTest, RowsOfLogProbabilitiesAreBounded) {
  options.row_bytes = 1;
  options.most_rows = 6;
  add(1, 20)->row_for_each_token = true;
  add(2, 20)->row_for_each_token = true;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 7)));
  EXPECT_THAT(step(), ElementsAre(Pair(1, 7), Pair(2, 1)));
  EXPECT_THAT(step(), ElementsAre(Pair(1, 6), Pair(2, 2)));
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(2, 7)));
}

// Rows of logits that one pass needed must be available to the next.
TEST_F(SchedulerTest, RowsAreReturnedAfterAPass) {
  options.row_bytes = 10;
  budget = 100;
  add(1, 8, 1)->row_for_each_token = true;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 8)));
  end(sequences_[1].get());
  add(2, 90, 1);
  for (int64_t done = 0; done < 80; done += 16) EXPECT_THAT(step(), ElementsAre(Pair(2, 16)));
  EXPECT_THAT(step(), ElementsAre(Pair(2, 10)));
}

// However many sequences wait, the next pass looks at the oldest ones only.
TEST_F(SchedulerTest, ADeepQueueCostsAPassNoMoreThanAShortOne) {
  options.max_sequences = 1'000'000;
  budget = 100;
  add(1, 10, 50);
  step();
  for (uint64_t ticket = 2; ticket < 10'002; ++ticket) add(ticket, 95, 10);
  FakeSequence::questions = 0;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1)));
  EXPECT_LT(FakeSequence::questions, 10 * static_cast<int64_t>(Scheduler::kLookAhead));
  EXPECT_EQ(scheduler().candidates().size(), Scheduler::kLookAhead);
  EXPECT_EQ(scheduler().candidates()[0], sequences_[2].get());
}

TEST_F(SchedulerTest, LogitsCountInMemory) {
  options.row_bytes = 40;
  budget = 100;
  add(1, 10, 10, 2);  // 80 bytes of logits when its prompt ends
  EXPECT_THAT(step(), ElementsAre(Pair(1, 10)));
  end(sequences_[1].get());
  add(2, 30, 1, 2);
  EXPECT_THAT(step(), ElementsAre(Pair(2, 16)));
  EXPECT_THAT(step(), ElementsAre(Pair(2, 7)));  // computing the whole rest would add the logits
}

TEST_F(SchedulerTest, SaysWhoIsStuckAlone) {
  budget = 12;
  add(1, 10, 10);
  step();
  EXPECT_FALSE(plan_.stuck);
  step();
  step();
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_EQ(plan_.stuck, sequences_[1].get());
}

TEST_F(SchedulerTest, WhoCannotBeginFailsAndOthersGoOn) {
  add(1, 10)->fails = true;
  add(2, 10);
  EXPECT_THAT(step(), ElementsAre(Pair(2, 10)));
  ASSERT_EQ(plan_.failed.size(), 1u);
  EXPECT_THROW(std::rethrow_exception(plan_.failed[0].second), std::runtime_error);
  EXPECT_EQ(scheduler().n_running(), 1);
  EXPECT_EQ(scheduler().n_waiting(), 0);
}

TEST_F(SchedulerTest, SuspectsGoOnAlone) {
  for (uint64_t i = 1; i <= 3; ++i) add(i, 4);
  step();
  for (uint64_t i = 1; i <= 2; ++i) {
    scheduler().drop(sequences_[i].get());
    scheduler().isolate(sequences_[i].get(), true);
  }
  EXPECT_THAT(step(), ElementsAre(Pair(1, 5)));
  scheduler().isolate(sequences_[1].get(), false);
  EXPECT_THAT(step(), ElementsAre(Pair(2, 5)));
  scheduler().isolate(sequences_[2].get(), false);
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 1)));
}

// A preempted sequence waits until more memory is free. One that is only recomputed does not.
TEST_F(SchedulerTest, ASuspectWithoutMemoryWaitsForOlderSequences) {
  for (uint64_t i = 1; i <= 2; ++i) add(i, 4);
  step();
  scheduler().isolate(sequences_[2].get(), true);
  budget = used_;
  EXPECT_THAT(step(), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(preempted(), ElementsAre(2));
  EXPECT_EQ(plan_.stuck, nullptr);
}

// A sequence that lost its memory waits until there is more for it; one that is only to be computed anew does not.
TEST_F(SchedulerTest, WhoLostNoMemoryGoesOnAtOnce) {
  budget = 100;
  for (uint64_t i = 1; i <= 2; ++i) add(i, 4);
  step();
  for (int i = 0; i < 6; ++i) {
    scheduler().drop(sequences_[2].get(), false);
    step();
    EXPECT_EQ(scheduler().n_running(), 2);
  }
  for (int i = 0; i < 6; ++i) {
    scheduler().drop(sequences_[2].get());
    step();
  }
  EXPECT_EQ(scheduler().n_running(), 1);
}

TEST_F(SchedulerTest, PromisesWhatPromptsStillNeed) {
  add(1, 40, 10);
  step();
  EXPECT_EQ(scheduler().bytes_promised(), 40);
}

// Requests of all sizes, far more than fit: memory is never exceeded, all are served, and none waits forever.
TEST_F(SchedulerTest, ServesALoadBeyondItsMemory) {
  options.max_sequences = 6;
  budget = 300;
  std::map<uint64_t, int64_t> since;
  uint64_t next = 0, served = 0;
  for (int64_t step_number = 0; step_number < 6000; ++step_number) {
    if (step_number % 20 == 0 && step_number < 4000) {
      since[next] = step_number;
      add(next, next % 7 == 3 ? 150 : 5 + static_cast<int64_t>(next % 5), next % 4 == 1 ? 60 : 10, 1, 1);
      ++next;
    }
    step();
    ASSERT_FALSE(plan_.stuck);
    std::erase_if(sequences_, [&](const auto& item) {
      if (!item.second->finished()) return false;
      EXPECT_LT(step_number - since[item.first], 1500);
      ++served;
      return true;
    });
  }
  EXPECT_EQ(served, next);
  EXPECT_EQ(used_, 0);
}

}  // namespace
}  // namespace smartkv
