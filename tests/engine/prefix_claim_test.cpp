#include "engine/prefix_claim.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <numeric>

#include "cache/policy.h"
#include "tests/cache/cache_driver.h"

namespace smartkv {
namespace {

class PrefixClaimTest : public ::testing::Test {
 protected:
  // Runs a prompt and stores its state after each of these numbers of tokens. All prompts share their first 100 tokens.
  void run(int32_t number, std::vector<int64_t> states) {
    std::vector<int32_t> tokens(static_cast<size_t>(states.back()) + 1, number);
    std::iota(tokens.begin(), tokens.begin() + 100, 0);
    PrefixClaim claim;
    auto cache = claim.find(&prefixes_, "key", *policy_, tokens, nullptr, INT64_MAX);
    if (cache == nullptr) cache = policy_->new_sequence(states.back());
    claim.run();
    claim.begin(*cache);
    for (const int64_t n : states) {
      if (cache->tokens() < n) driver_.pass(cache.get(), n - cache->tokens(), 0);
      cache->commit(n);
      claim.store(&prefixes_, "key", std::span(tokens).first(static_cast<size_t>(n)), *cache, nullptr);
    }
  }

  CacheShape shape_{2, 1, 64, kernels::KvType::kBf16};
  ThreadPool threads_{1};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  CacheDriver driver_{shape_, 2, &threads_};
  std::unique_ptr<KvCachePolicy> policy_ = make_policy(context_, "full");
  PrefixCache prefixes_{int64_t{1} << 40};
};

TEST_F(PrefixClaimTest, StatesCountTheBytesThatTheyTake) {
  run(1, {100});
  EXPECT_EQ(prefixes_.bytes(), context_.pool->bytes_in_use());
  run(2, {110});  // in a copy of the last page
  run(3, {105, 120, 140});
  run(4, {128});
  run(4, {192, 200});
  EXPECT_EQ(prefixes_.n_states(), 8);
  EXPECT_EQ(prefixes_.bytes(), context_.pool->bytes_in_use());
}

}  // namespace
}  // namespace smartkv
