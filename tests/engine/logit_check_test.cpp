// Caches for which the engine compares logits with those of an exact cache.
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

constexpr int64_t kEvery = 20;

// Records what happened to the caches of a test.
struct Log {
  std::vector<LogitCheck> followed = {}, judged = {};
  bool passes = true;
  bool rows_are_equal = true;
};

// The full cache with a boundary kEvery tokens after the prompt and after each check. There it wants a check.
class CheckedCache final : public ForwardingCache {
 public:
  CheckedCache(std::unique_ptr<SequenceCache> cache, int64_t prompt, std::shared_ptr<Log> log)
      : ForwardingCache({cache.get()}), cache_(std::move(cache)), prompt_(prompt), log_(std::move(log)) {}

  int64_t next_boundary() const override { return tokens() < due() || committed() < due() ? due() : kNoBoundary; }
  bool wants_check() const override { return committed() >= due(); }
  void follow(const LogitCheck& check) override {
    EXPECT_EQ(tokens(), 0);
    log_->followed.push_back(followed_ = check);
  }
  LogitCheck judge(std::span<const float> exact, std::span<const float> own) override {
    log_->rows_are_equal = log_->rows_are_equal && std::equal(exact.begin(), exact.end(), own.begin(), own.end());
    EXPECT_EQ(tokens(), followed_.tokens);
    ++followed_.checks;
    followed_.passed = log_->passes;
    log_->judged.push_back(followed_);
    return followed_;
  }
  std::unique_ptr<SequenceCache> fork() const override { return copy(cache_->fork(), prompt_); }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override {
    return copy(cache_->resume(prompt_tokens), prompt_tokens);
  }

 private:
  int64_t due() const { return std::max(prompt_, followed_.tokens) + kEvery; }
  std::unique_ptr<SequenceCache> copy(std::unique_ptr<SequenceCache> cache, int64_t prompt) const {
    auto other = std::make_unique<CheckedCache>(std::move(cache), prompt, log_);
    other->followed_ = followed_;
    return other;
  }

  std::unique_ptr<SequenceCache> cache_;
  int64_t prompt_;
  std::shared_ptr<Log> log_;
  LogitCheck followed_;
};

class CheckedPolicy final : public KvCachePolicy {
 public:
  CheckedPolicy(std::unique_ptr<KvCachePolicy> policy, std::shared_ptr<Log> log)
      : policy_(std::move(policy)), log_(std::move(log)) {}
  std::string_view name() const override { return "checked"; }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    return policy_->max_bytes(prompt_tokens, n_tokens);
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<CheckedCache>(policy_->new_sequence(prompt_tokens), prompt_tokens, log_);
  }

 private:
  std::unique_ptr<KvCachePolicy> policy_;
  std::shared_ptr<Log> log_;
};

class LogitCheckTest : public EngineTest {
 protected:
  LogitCheckTest() { model = checked_model(); }
  std::unique_ptr<FakeModel> checked_model() const {
    auto checked = std::make_unique<FakeModel>();
    checked->checked_policy = [log = log_](std::unique_ptr<KvCachePolicy> policy) {
      return std::make_unique<CheckedPolicy>(std::move(policy), log);
    };
    return checked;
  }
  // Returns the numbers of tokens after which checks were made.
  std::vector<int64_t> checks() const {
    std::vector<int64_t> tokens;
    for (const LogitCheck& check : log_->judged) tokens.push_back(check.tokens);
    return tokens;
  }

  std::shared_ptr<Log> log_ = std::make_shared<Log>();
};

TEST_F(LogitCheckTest, ComputesTheTokensAnewAndGoesOnWithTheExactCache) {
  start();
  GenerationRequest request = make_request(30, 70);
  const ChoiceResult checked = generate(request);
  EXPECT_EQ(checks(), (std::vector<int64_t>{51, 72, 93}));
  EXPECT_TRUE(log_->rows_are_equal);
  EXPECT_EQ(log_->judged.back().checks, 3);
  EXPECT_EQ(checked.tokens.size(), 70u);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.logit_check_tokens, 51u + 72u + 93u);
  EXPECT_EQ(stats.recomputed_tokens, 0u);
  EXPECT_EQ(stats.preemptions, 0u);
  EXPECT_EQ(stats.kv_bytes_used, 0);
}

TEST_F(LogitCheckTest, PreemptionsMoveNoCheck) {
  log_->passes = false;
  start();
  GenerationRequest request = make_request(100, 100);
  request.n = 4;
  const auto expected = read_all(*engine->submit(request), 4);
  const auto sorted = [&] {
    std::vector<int64_t> tokens = checks();
    std::sort(tokens.begin(), tokens.end());
    return tokens;
  };
  const std::vector<int64_t> expected_checks = sorted();
  EXPECT_EQ(expected_checks.size(), 4 * 4u);
  EXPECT_EQ(log_->followed.size(), log_->judged.size());
  engine.reset();
  *log_ = Log{.passes = false};
  model = checked_model();
  options.kv_cache_bytes = 5 * kernels::kPageTokens * fake_cache_shape().bytes_per_token();
  start();
  const auto stream = engine->submit(request);
  const auto results = read_all(*stream, 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(results[i].tokens, expected[i].tokens) << i;
  EXPECT_GT(stream->usage().timings.preemptions, 0);
  EXPECT_EQ(sorted(), expected_checks);
  EXPECT_GE(log_->followed.size(), log_->judged.size());
}

TEST_F(LogitCheckTest, DraftsMoveNoCheck) {
  start();
  GenerationRequest request = make_request(40, 90);
  const ChoiceResult plain = generate(request);
  const std::vector<int64_t> expected = checks();
  log_->judged.clear();
  request.speculative = {{"method", "self"}, {"tokens", 3}, {"adaptive", false}};
  const auto stream = engine->submit(request);
  EXPECT_EQ(read_all(*stream)[0].tokens, plain.tokens);
  EXPECT_GT(stream->usage().speculation.accepted, 0);
  EXPECT_EQ(checks(), expected);
}

TEST_F(LogitCheckTest, ACheckedSequenceLeavesNoStates) {
  options.prefix_cache_bytes = -1;
  start();
  generate(make_request(100, 60));
  EXPECT_EQ(checks().size(), 2u);
  GenerationRequest again = make_request(100, 5);
  const auto stream = engine->submit(again);
  read_all(*stream);
  EXPECT_LE(stream->usage().cached_tokens, 100);  // states of the prompt are found, none of the answer
}

}  // namespace
}  // namespace smartkv
