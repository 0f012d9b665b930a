#include "cache/policies/full/full.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "kernels/elementwise.h"
#include "tests/cache/policy_error.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

class FullPolicyTest : public testing::Test {
 protected:
  CacheShape shape_{2, 3, 32, kernels::KvType::kF32};
  std::shared_ptr<PagePool> pool_ = PagePool::create(shape_);
  std::unique_ptr<KvCachePolicy> policy_ = make_policy({shape_, pool_}, nullptr);

  // Appends n tokens. The values of their K and V encode layer, salt and position.
  void append(SequenceCache& cache, int64_t n, float salt) {
    cache.reserve(n);
    const size_t width = 96;
    for (int64_t layer = 0; layer < shape_.n_layers; ++layer) {
      std::vector<float> k, v;
      for (int64_t i = 0; i < n; ++i) {
        k.insert(k.end(), width, salt + static_cast<float>(1000 * layer + cache.tokens() + i));
        v.insert(v.end(), width, -salt - static_cast<float>(1000 * layer + cache.tokens() + i));
      }
      cache.write(layer, {k.data(), v.data(), 96, 0, n});
    }
    cache.advance(n);
  }
  std::vector<float> keys(const SequenceCache& cache, int64_t layer) {
    std::vector<kernels::KvSegment> segments;
    cache.view(layer, 0, &segments);
    std::vector<float> values;
    for (const kernels::KvSegment& segment : segments) {
      for (int64_t slot = 0; slot < segment.tokens; ++slot) {
        std::vector<float> k(32), v(32);
        kernels::load_kv(shape_.type, 32, segment, 2, slot, k.data(), v.data());
        EXPECT_EQ(k[31], -v[0]);
        values.push_back(k[5]);
      }
    }
    return values;
  }
  std::vector<float> expected(int64_t layer, int64_t n, float salt) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(salt + static_cast<float>(1000 * layer + i));
    return values;
  }
};

TEST_F(FullPolicyTest, KeepsEveryTokenInOrder) {
  const auto cache = policy_->new_sequence(0);
  append(*cache, 100, 0.5f);
  append(*cache, 1, 0.5f);
  append(*cache, 200, 0.5f);
  EXPECT_EQ(cache->tokens(), 301);
  for (int64_t layer = 0; layer < 2; ++layer) EXPECT_EQ(keys(*cache, layer), expected(layer, 301, 0.5f));
}

TEST_F(FullPolicyTest, CountsTheBytesThatThePoolGaveOut) {
  const auto cache = policy_->new_sequence(0);
  EXPECT_EQ(cache->stats().bytes, 0);
  for (const int64_t n : {1, 63, 1, 300}) {
    append(*cache, n, 0);
    EXPECT_EQ(cache->stats().bytes, pool_->bytes_in_use());
    EXPECT_LE(cache->stats().bytes, policy_->max_bytes(0, cache->tokens()));
    EXPECT_EQ(cache->stats().tokens_kept, cache->tokens());
  }
}

TEST_F(FullPolicyTest, ReturnsItsPages) {
  auto cache = policy_->new_sequence(0);
  append(*cache, 300, 0);
  cache.reset();
  EXPECT_EQ(pool_->bytes_in_use(), 0);
}

TEST_F(FullPolicyTest, ForksShareFullPagesAndWriteApart) {
  const auto cache = policy_->new_sequence(0);
  append(*cache, 200, 0);
  const int64_t before = pool_->bytes_in_use();
  const auto fork = cache->fork();
  EXPECT_EQ(pool_->bytes_in_use(), before);
  append(*fork, 30, 7);
  append(*cache, 20, 3);
  EXPECT_LT(pool_->bytes_in_use(), 2 * before);
  std::vector<float> original = expected(1, 200, 0), forked = original;
  for (int64_t i = 200; i < 220; ++i) original.push_back(3.0f + static_cast<float>(1000 + i));
  for (int64_t i = 200; i < 230; ++i) forked.push_back(7.0f + static_cast<float>(1000 + i));
  EXPECT_EQ(keys(*cache, 1), original);
  EXPECT_EQ(keys(*fork, 1), forked);
}

TEST_F(FullPolicyTest, TruncatesToAnyUncommittedLength) {
  const auto cache = policy_->new_sequence(0);
  append(*cache, 200, 0);
  cache->commit(100);
  cache->truncate(130);
  append(*cache, 10, 0);
  EXPECT_EQ(keys(*cache, 0), expected(0, 140, 0));
  EXPECT_THROW(cache->truncate(99), CacheError);
  EXPECT_THROW(cache->truncate(141), CacheError);
  EXPECT_THROW(cache->commit(141), CacheError);
}

TEST(Registry, NamesWhatIsWrong) {
  const CacheShape shape{1, 1, 16, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  const auto message = [&](const nlohmann::json& spec) { return policy_error(context, spec); };
  EXPECT_EQ(make_policy(context, nullptr)->name(), "full");
  EXPECT_EQ(make_policy(context, "full")->name(), "full");
  EXPECT_EQ(make_policy(context, {{"policy", "full"}})->name(), "full");
  EXPECT_NE(message("fulll").find("unknown policy \"fulll\"; known: \"full\""), std::string::npos);
  EXPECT_NE(message({{"policy", "full"}, {"window", 3}}).find("kv_cache.window"), std::string::npos);
  EXPECT_NE(message({{"window", 3}}).find("kv_cache.policy"), std::string::npos);
  EXPECT_NE(message(3).find("found number"), std::string::npos);
}

}  // namespace
}  // namespace smartkv
