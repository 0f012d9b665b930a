// If a change that tensor-parallel ranks make together fails on some ranks, the others must not wait for them.
#include "engine/parallel/rank_heads.h"

#include <barrier>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartkv {
namespace {

using ::testing::ElementsAre;

constexpr int kRanks = 3;

struct Meeting {
  std::vector<std::vector<uint8_t>> told = std::vector<std::vector<uint8_t>>(kRanks);
  std::barrier<> all_told{kRanks}, all_heard{kRanks};
};

class MemoryGroup final : public RankGroup {
 public:
  MemoryGroup(Meeting* meeting, int rank) : meeting_(meeting), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return kRanks; }
  void send(std::span<const uint8_t>) override { throw RankError("expected no message"); }
  std::vector<uint8_t> receive() override { throw RankError("expected no message"); }
  void max(std::span<int64_t>, bool) override { throw RankError("expected no maximum"); }
  std::vector<std::vector<uint8_t>> gather(std::span<const uint8_t> own) override {
    meeting_->told[static_cast<size_t>(rank_)].assign(own.begin(), own.end());
    meeting_->all_told.arrive_and_wait();
    std::vector<std::vector<uint8_t>> all = meeting_->told;
    meeting_->all_heard.arrive_and_wait();
    return all;
  }

 private:
  Meeting* meeting_;
  int rank_;
};

// Returns what happened on each rank: "fine", "no memory", or the message of the exception. The change calls
// fails(rank, step) around two exchanges. A second change follows, which succeeds and appends what was exchanged.
std::vector<std::string> outcomes(const std::function<void(int rank, int step)>& fails) {
  Meeting meeting;
  std::vector<std::string> outcomes(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryGroup group(&meeting, rank);
      RankHeads heads(group, 5);
      std::string& outcome = outcomes[static_cast<size_t>(rank)];
      try {
        heads.together([&] {
          for (int step = 0; step < 3; ++step) {
            fails(rank, step);
            if (step < 2) heads.exchange(std::vector<std::byte>(static_cast<size_t>(rank + step)));
          }
        });
        outcome = "fine";
      } catch (const std::bad_alloc&) {
        outcome = "no memory";
      } catch (const std::exception& error) {
        outcome = error.what();
      }
      heads.together([&] {
        const std::byte own{static_cast<unsigned char>(rank)};
        for (const auto& told : heads.exchange({&own, 1}))
          outcome += " " + std::to_string(static_cast<int>(told.at(0)));
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

constexpr const char* kElsewhere = "the KV cache of another rank failed; see its message in the log 0 1 2";

TEST(RankHeads, GiveEachRankWhatAllGive) {
  EXPECT_THAT(outcomes([](int, int) {}), ElementsAre("fine 0 1 2", "fine 0 1 2", "fine 0 1 2"));
}

TEST(RankHeads, AFailureOnOneRankFailsAllWhereverItHappens) {
  for (int at = 0; at < 3; ++at) {
    const auto fails = [at](int rank, int step) {
      if (rank == 1 && step == at) throw CacheError("it broke");
    };
    EXPECT_THAT(outcomes(fails), ElementsAre(kElsewhere, "it broke 0 1 2", kElsewhere)) << at;
  }
}

TEST(RankHeads, SeveralMayFailAtOnce) {
  const auto fails = [](int rank, int step) {
    if (rank > 0 && step == 1) throw CacheError("it broke");
  };
  EXPECT_THAT(outcomes(fails), ElementsAre(kElsewhere, "it broke 0 1 2", "it broke 0 1 2"));
}

TEST(RankHeads, WantOfMemoryIsTold) {
  const auto fails = [](int rank, int step) {
    if (rank == 2 && step == 1) throw std::bad_alloc();
  };
  EXPECT_THAT(outcomes(fails), ElementsAre("no memory 0 1 2", "no memory 0 1 2", "no memory 0 1 2"));
}

TEST(RankHeads, ExchangeNothingOutsideOfWhatIsDoneTogether) {
  Meeting meeting;
  MemoryGroup group(&meeting, 1);
  RankHeads heads(group, 5);
  EXPECT_THROW(heads.exchange({}), std::logic_error);
  EXPECT_EQ(heads.of_rank(0), 2);
  EXPECT_EQ(heads.of_rank(2), 1);
  EXPECT_EQ(heads.first(2), 4);
  EXPECT_EQ(heads.all(), 5);
}

}  // namespace
}  // namespace smartkv
