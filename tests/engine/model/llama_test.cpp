// The promises of Model::forward. tests/engine/torch compares its values with LibTorch's.
#include "engine/model/llama.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engine/model/served_llama.h"

namespace smartkv {
namespace {

class LlamaTypes : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(LlamaTypes, LogitsDoNotDependOnChunksOrBatch) {
  const auto [type, experts] = GetParam();
  const TinyWeights weights(experts ? tiny_experts() : tiny_config());
  Served served(weights, std::string(type) == "f32" ? "f32" : "bf16", type);
  const std::vector<TokenId> a = some_tokens(200, 259, 1), b = some_tokens(33, 259, 2), c = some_tokens(1, 259, 3);
  const std::vector<float> whole = served.run(a, 512);
  for (const int64_t chunk : {1, 7, 64, 100}) EXPECT_EQ(whole, served.run(a, chunk)) << "chunks of " << chunk;

  const std::vector<float> alone_b = served.run(b, 512), alone_c = served.run(c, 512);
  const auto cache_a = served.policy->new_sequence(0), cache_b = served.policy->new_sequence(0),
             cache_c = served.policy->new_sequence(0);
  const SequenceInput batch[] = {{a, cache_a.get(), 3}, {b, cache_b.get(), 0}, {c, cache_c.get(), 1}};
  std::vector<float> logits(4 * 259);
  served.model->forward(batch, logits.data());
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 3 * 259, whole.end() - 3 * 259));
  EXPECT_TRUE(std::equal(logits.begin() + 3 * 259, logits.end(), alone_c.begin()));
  EXPECT_EQ(cache_b->tokens(), 33);
  // The sequence for which no logits were wanted has the same cache as with logits.
  const TokenId next = 17;
  const SequenceInput step{{&next, 1}, cache_b.get(), 1};
  std::vector<float> one(259);
  served.model->forward({&step, 1}, one.data());
  std::vector<TokenId> longer = b;
  longer.push_back(next);
  const std::vector<float> expected = served.run(longer, 512);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), expected.end() - 259));
}

INSTANTIATE_TEST_SUITE_P(Types, LlamaTypes,
                         testing::Combine(testing::Values("f32", "bf16", "int8", "int4"), testing::Bool()),
                         [](const auto& item) {
                           return std::string(std::get<0>(item.param)) + (std::get<1>(item.param) ? "_experts" : "");
                         });

TEST(Llama, RewindsToWhereItWas) {
  const TinyWeights weights(tiny_config());
  Served served(weights, "f32");
  const std::vector<TokenId> tokens = some_tokens(100, 259, 9), other = some_tokens(20, 259, 10);
  const std::vector<float> expected = served.run(tokens, 512);
  const auto cache = served.policy->new_sequence(0);
  std::vector<float> logits(200 * 259);
  const auto feed = [&](std::span<const TokenId> part) {
    const SequenceInput input{part, cache.get(), static_cast<int64_t>(part.size())};
    served.model->forward({&input, 1}, logits.data());
  };
  feed(std::span(tokens).first(70));
  feed(other);
  cache->truncate(70);
  feed(std::span(tokens).subspan(70));
  EXPECT_TRUE(std::equal(logits.begin(), logits.begin() + 30 * 259, expected.begin() + 70 * 259));
}

#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // both replace mlock() by a function that does nothing
// A user without privileges and without a limit cannot lock memory.
TEST(LlamaDeathTest, WeightsThatCannotBeLockedNameTheLimit) {
  const auto load = [] {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_MEMLOCK, &none);
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setuid(kNobody) != 0) _exit(1);
    try {
      ThreadPool pool(1);
      load_llama(TinyWeights(tiny_experts()), {.weights_lock = WeightsLock::kOn}, pool);
    } catch (const ModelError& error) {
      std::fputs(error.what(), stderr);
      _exit(3);
    }
    _exit(0);
  };
  EXPECT_EXIT(load(), testing::ExitedWithCode(3),
              "weights_lock: the [0-9]+ bytes of weights cannot be locked: .*RLIMIT_MEMLOCK, ulimit -l. is 0 bytes");
}
#endif

TEST(Llama, TypesThatDoNotGoTogetherAreRefused) {
  const TinyWeights weights(tiny_config());
  EXPECT_THROW(Served(weights, "f32", "int8"), ModelError);
  EXPECT_THROW(Served(weights, "bf16", "f32"), ModelError);
}

}  // namespace
}  // namespace smartkv
