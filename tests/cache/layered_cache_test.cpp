#include "cache/layered_cache.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/dense_layer.h"
#include "tests/cache/cache_driver.h"
#include "tests/cache/policy_error.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

class Layered : public testing::Test {
 protected:
  static PolicyContext context_of(int64_t full, int64_t windows) {
    const CacheShape shape{full, 1, 64, kernels::KvType::kBf16};
    PolicyContext context{shape, PagePool::create(shape)};
    context.window = {100, windows};
    return context;
  }
  CacheDriver driver(const PolicyContext& context) {
    return CacheDriver(context.shape, 2, context.pool->backend(), 0, 0, context.window);
  }
};

// Tokens that a window of 100 can still show stay, and older pages are released.
TEST_F(Layered, WindowsHoldNoMoreThanTheyShow) {
  const PolicyContext context = context_of(2, 3);
  const int64_t page = context.pool->page_bytes();
  const auto policy = make_policy(context, "full");
  const auto cache = policy->new_sequence(150);
  for (const int64_t n : {90, 150, 163, 164, 228, 1000}) {
    const int64_t growth = cache->max_growth(n - cache->tokens()), before = context.pool->bytes_in_use();
    driver(context).run(cache.get(), n, 64);
    EXPECT_LE(context.pool->bytes_in_use(), before + growth);
    const std::vector<int64_t> in_window = cache->positions(2, 0);
    EXPECT_LE(in_window.front(), std::max<int64_t>(0, n + 1 - 100));
    EXPECT_EQ(in_window.back(), n - 1);
    EXPECT_EQ(std::ssize(cache->positions(1, 0)), n);
    const CacheStats stats = cache->stats();
    EXPECT_LE(stats.bytes, policy->max_bytes(150, n));
    EXPECT_LE(stats.window_bytes, 3 * 4 * page);
    EXPECT_EQ(stats.bytes, dense_bytes(context.shape, n) + stats.window_bytes);
    EXPECT_EQ(stats.full_bytes, stats.bytes);
    EXPECT_EQ(stats.tokens_kept, n);
    EXPECT_LE(cache->stable_bytes(), dense_bytes(context.shape, n));
  }
}

// The windows are the same under every policy.
TEST_F(Layered, NoPolicyChangesAWindow) {
  const PolicyContext context = context_of(1, 2);
  const auto full = make_policy(context, "full")->new_sequence(1),
             coded = make_policy(context, "k2v2")->new_sequence(1);
  const auto exact = driver(context).run(full.get(), 400, 64), outputs = driver(context).run(coded.get(), 400, 64);
  constexpr size_t kLayer = 2 * 64;
  for (size_t t = 0; t < outputs.size(); ++t) {
    ASSERT_TRUE(std::equal(outputs[t].begin() + kLayer, outputs[t].end(), exact[t].begin() + kLayer)) << t;
  }
  EXPECT_NE(outputs.back(), exact.back());
  EXPECT_EQ(coded->stats().window_bytes, full->stats().window_bytes);
  EXPECT_LT(coded->stats().bytes, full->stats().bytes);
}

// If all layers have a window, a policy has no layer. Its parameters are checked all the same.
TEST_F(Layered, WithoutFullAttentionAPolicyHoldsNothing) {
  const PolicyContext context = context_of(0, 2);
  const auto full = make_policy(context, "full"), coded = make_policy(context, {{"policy", "k4v4"}, {"window", 200}});
  EXPECT_EQ(coded->name(), "k4v4");
  EXPECT_EQ(coded->spec(), (nlohmann::json{{"policy", "k4v4"}, {"window", 200}}));
  EXPECT_EQ(coded->max_bytes(0, 1000), full->max_bytes(0, 1000));
  EXPECT_LE(coded->max_bytes(0, 1000), 2 * 4 * context.pool->page_bytes());
  const auto a = full->new_sequence(1), b = coded->new_sequence(1);
  EXPECT_EQ(driver(context).run(a.get(), 300, 64), driver(context).run(b.get(), 300, 64));
  EXPECT_NE(policy_error(context, {{"policy", "k4v4"}, {"bogus", 1}}).find("kv_cache.bogus"), std::string::npos);
}

// A failed call changes neither kind.
TEST_F(Layered, TruncatesBothOrNeither) {
  const PolicyContext context = context_of(1, 1);
  const auto cache = make_policy(context, "k4v4")->new_sequence(1);
  driver(context).run(cache.get(), 200, 64);
  driver(context).pass(cache.get(), 10);
  EXPECT_THROW(cache->truncate(199), CacheError);
  EXPECT_EQ(cache->positions(0, 0).back(), 209);
  EXPECT_EQ(cache->positions(1, 0).back(), 209);
  cache->truncate(203);
  EXPECT_EQ(cache->positions(0, 0).back(), 202);
  EXPECT_EQ(cache->positions(1, 0).back(), 202);
}

}  // namespace
}  // namespace smartkv
