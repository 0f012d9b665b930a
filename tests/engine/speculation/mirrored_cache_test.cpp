#include "engine/speculation/mirrored_cache.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "tests/cache/cache_driver.h"

namespace smartkv {
namespace {

class MirroredCacheTest : public testing::Test {
 protected:
  std::unique_ptr<SequenceCache> sequence(const nlohmann::json& spec) {
    return policies_.emplace_back(make_policy(context_, spec))->new_sequence(0);
  }
  // Returns the attention outputs of the next token.
  std::vector<std::vector<float>> next(SequenceCache* cache) { return driver_.pass(cache, 1); }

  ThreadPool pool_{1};
  CacheShape shape_{2, 2, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_)};
  std::vector<std::unique_ptr<KvCachePolicy>> policies_;
  CacheDriver driver_{shape_, 4, &pool_};
};

TEST_F(MirroredCacheTest, LongPassesFillTheDraftAsShortOnes) {
  for (const char* policy : {"k4v4", "k8v8", "full"}) {
    const auto alone = sequence(policy), plain = sequence("full"), target = sequence("full"), draft = sequence(policy);
    MirroredCache mirror(context_, target.get(), draft.get());
    driver_.run(alone.get(), 1000, 64);
    driver_.run(plain.get(), 1000, 64);
    int64_t end = 0;
    for (const int64_t n : {1, 300, 63, 64, 65, 7, 500}) {
      ASSERT_GE(mirror.next_boundary(), end + n);
      driver_.pass(&mirror, n);
      mirror.commit(mirror.tokens());
      end += n;
      EXPECT_EQ(draft->tokens(), end) << policy;
    }
    EXPECT_EQ(draft->stats().bytes, alone->stats().bytes) << policy;
    EXPECT_EQ(next(draft.get()), next(alone.get())) << policy;
    EXPECT_EQ(next(target.get()), next(plain.get())) << policy;
  }
}

TEST_F(MirroredCacheTest, WhatIsTruncatedNeverReachesTheDraft) {
  const auto alone = sequence("k4v4"), target = sequence("full"), draft = sequence("k4v4");
  MirroredCache mirror(context_, target.get(), draft.get());
  driver_.run(alone.get(), 220, 64);
  // The passes end on both sides of the draft's boundaries.
  for (int64_t end = 0; end < 220; end += 11) {
    driver_.pass(&mirror, 20, 1);
    mirror.truncate(end);
    driver_.pass(&mirror, 20);
    mirror.truncate(end + 11);
    mirror.commit(mirror.tokens());
    EXPECT_EQ(draft->tokens(), end + 11);
  }
  EXPECT_EQ(next(draft.get()), next(alone.get()));
}

TEST_F(MirroredCacheTest, KeptRowsAreCommittedAllTogether) {
  const auto target = sequence("full"), draft = sequence("k4v4");
  MirroredCache mirror(context_, target.get(), draft.get());
  driver_.pass(&mirror, 300);
  EXPECT_THROW(mirror.commit(200), CacheError);
  mirror.commit(300);
  EXPECT_EQ(draft->tokens(), 300);
}

}  // namespace
}  // namespace smartkv
