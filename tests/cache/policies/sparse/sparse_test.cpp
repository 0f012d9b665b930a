// Checks what the policy keeps and reads, in bytes and tokens, and what it refuses.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cache/policy.h"
#include "cache/quantized_page.h"
#include "kernels/indexed_rows.h"
#include "tests/cache/cache_driver.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

class Sparse : public testing::Test {
 protected:
  std::unique_ptr<SequenceCache> filled(const nlohmann::json& spec, int64_t prompt, int64_t tokens) {
    policy_ = make_policy(context_, spec);
    auto cache = policy_->new_sequence(prompt);
    CacheDriver(shape_, 4, &threads_).run(cache.get(), tokens, 256);
    return cache;
  }
  std::vector<kernels::KvSegment> view(const SequenceCache& cache) const {
    std::vector<kernels::KvSegment> segments;
    cache.view(0, 0, &segments);
    return segments;
  }
  std::string error(const nlohmann::json& spec) const {
    try {
      make_policy(context_, spec);
    } catch (const CacheError& thrown) {
      return thrown.what();
    }
    return "no error";
  }

  ThreadPool threads_{1};
  CacheShape shape_{2, 2, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_)};
  std::unique_ptr<KvCachePolicy> policy_;
};

TEST_F(Sparse, ThePromptIsDenseUntilItsEnd) {
  const auto cache = filled("sparse", 1000, 900);
  for (const kernels::KvSegment& segment : view(*cache)) EXPECT_FALSE(segment.is_indexed());
  CacheDriver(shape_, 4, &threads_).run(cache.get(), 1000, 256);
  EXPECT_EQ(view(*cache)[13].is_indexed(), true);  // tokens 832 to 895; later ones are still in the tail
  EXPECT_EQ(view(*cache)[14].is_indexed(), false);
}

TEST_F(Sparse, EachPageButTheSinksAddsItsShare) {
  const auto cache = filled({{"policy", "sparse"}, {"read", 0.1}}, 1000, 1000);
  const auto segments = view(*cache);
  EXPECT_EQ(segments[0].read, kPageTokens);
  for (size_t i = 1; i < 14; ++i) EXPECT_EQ(segments[i].read, 7) << i;  // 0.1 of 64 tokens, rounded up
  EXPECT_EQ(cache->details().at("tokens_read"), kPageTokens + 13 * 7);
}

TEST_F(Sparse, BytesAreThoseOfRowsAndIndex) {
  const auto page_bytes = [&](int bits) {
    kernels::QuantizedLayout index;
    index.k = kernels::uniform_runs(shape_.head_dim, 2);
    index.v.dropped = kPageTokens / 4;
    return shape_.n_layers * (quantized_bytes(shape_, index) + indexed_bytes(shape_, {16, bits}));
  };
  for (const auto& [kept, bits] : {std::pair{"dense", 0}, {"k8v8", 8}, {"k4v4", 4}}) {
    const auto cache = filled({{"policy", "sparse"}, {"kept", kept}}, 1024, 1024);
    const int64_t tail = kPageTokens * shape_.bytes_per_token();
    EXPECT_EQ(cache->stats().bytes, tail + page_bytes(0) + 14 * page_bytes(bits)) << kept;
    EXPECT_EQ(cache->stats().tokens_kept, 1024);
    EXPECT_EQ(cache->details().at("bits_k"), bits == 0 ? 16 : bits);
    EXPECT_LE(cache->stats().bytes, policy_->max_bytes(1024, 1024));
  }
  // A row takes 72 or 136 bytes instead of 256, and its part of the index 18 to 20 bytes.
  const auto full = static_cast<double>(kPageTokens * shape_.bytes_per_token());
  EXPECT_NEAR(static_cast<double>(page_bytes(0)) / full, 1.10, 0.02);
  EXPECT_NEAR(static_cast<double>(page_bytes(8)) / full, 0.63, 0.02);
  EXPECT_NEAR(static_cast<double>(page_bytes(4)) / full, 0.38, 0.02);
}

TEST_F(Sparse, RefusesWhatItCannotRead) {
  EXPECT_NE(error({{"policy", "sparse"}, {"kept", "k3v3"}}).find("kept"), std::string::npos);
  EXPECT_NE(error({{"policy", "sparse"}, {"read", 0}}).find("read"), std::string::npos);
  EXPECT_NE(error({{"policy", "sparse"}, {"index_bits", "1"}}).find("index_bits"), std::string::npos);
  EXPECT_NE(error({{"policy", "sparse"}, {"reads", 0.5}}).find("reads"), std::string::npos);
}

}  // namespace
}  // namespace smartkv
