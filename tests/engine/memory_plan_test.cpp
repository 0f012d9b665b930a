// Compares a plan with what the engine then takes.
#include "engine/memory_plan.h"

#include <algorithm>

#include "cache/policy.h"
#include "tests/engine/engine_fixture.h"

namespace smartkv {
namespace {

class MemoryPlanTest : public EngineTest {
 protected:
  CacheShape shape_ = fake_cache_shape();
  PolicyContext context_{shape_, PagePool::create(shape_)};
  std::unique_ptr<KvCachePolicy> full_ = make_policy(context_, "full");
  int64_t row_ = 256;
  int64_t bytes(int64_t tokens) const { return full_->max_bytes(tokens, tokens) + row_; }
};

TEST_F(MemoryPlanTest, IsThePolicysBound) {
  const MemoryPlan plan =
      plan_memory(*full_, nullptr, {.prompt_tokens = 100, .output_tokens = 50}, {10 * bytes(150), row_});
  EXPECT_EQ(plan.policy, "full");
  EXPECT_EQ(plan.problem, "");
  EXPECT_EQ(plan.prompt_bytes, bytes(101));
  EXPECT_EQ(plan.max_bytes, bytes(150));
  EXPECT_EQ(plan.final_bytes, bytes(150));
  EXPECT_EQ(plan.output_tokens, 50);
  EXPECT_EQ(plan.sequences, 10);
}

TEST_F(MemoryPlanTest, CountsTheCacheOfDrafts) {
  const PlanQuestion question{.prompt_tokens = 100, .output_tokens = 50};
  const MemoryPlan plan = plan_memory(*full_, full_.get(), question, {int64_t{1} << 30, row_});
  EXPECT_EQ(plan.max_bytes, 2 * (bytes(150) - row_) + row_);
}

TEST_F(MemoryPlanTest, WhatIsOffloadedCountsInTheHostsMemory) {
  const PlanQuestion question{.prompt_tokens = 100, .output_tokens = 50, .offloads = true};
  const int64_t apart = full_->max_bytes(100, 150);
  const MemoryPlan plan = plan_memory(*full_, full_.get(), question, {int64_t{1} << 30, row_, 3 * apart});
  EXPECT_EQ(plan.problem, "");
  EXPECT_EQ(plan.max_bytes, bytes(150));
  EXPECT_EQ(plan.sequences, 3);
  const MemoryPlan none = plan_memory(*full_, full_.get(), question, {int64_t{1} << 30, row_, apart - 1});
  EXPECT_EQ(none.sequences, 0);
  EXPECT_EQ(none.problem, "one sequence may need " + std::to_string(apart) + " bytes of host memory, but only " +
                              std::to_string(apart - 1) + " are available (kv_offload_bytes)");
}

TEST_F(MemoryPlanTest, SaysWhyItDoesNotFit) {
  const PlanMemory memory{bytes(200), row_};
  const MemoryPlan longer = plan_memory(*full_, nullptr, {.prompt_tokens = 100, .output_tokens = 500}, memory);
  EXPECT_EQ(longer.sequences, 0);
  EXPECT_GE(longer.output_tokens, 100);
  EXPECT_LT(longer.output_tokens, 500);
  EXPECT_EQ(longer.problem, "one sequence may need " + std::to_string(bytes(600)) + " bytes of KV cache, but only " +
                                std::to_string(memory.kv_cache_bytes) + " are available (kv_cache_bytes)");
  const MemoryPlan open =
      plan_memory(*full_, nullptr, {.prompt_tokens = 100, .output_tokens = 500, .to_the_end = true}, memory);
  EXPECT_EQ(open.problem, "");
  EXPECT_EQ(open.output_tokens, longer.output_tokens);
  const MemoryPlan two =
      plan_memory(*full_, nullptr, {.prompt_tokens = 150, .output_tokens = 50, .sequences = 2}, memory);
  EXPECT_EQ(two.sequences, 1);
  EXPECT_TRUE(two.problem.starts_with("2 sequences may need")) << two.problem;
}

TEST_F(MemoryPlanTest, AgreesWithWhatTheEngineTakes) {
  options.kv_cache_bytes = 100 << 10;
  start();
  int taken = 0, refused = 0;
  for (const int64_t prompt : {10, 400, 900}) {
    for (const int64_t output : {1, 100, 600}) {
      GenerationRequest request = make_request(prompt, output);
      for (const char* policy : {"full", "streaming", "random"}) {
        request.kv_cache = policy;
        const MemoryPlan plan = engine->plan(request).front();
        bool fits = true;
        try {
          engine->validate(request);
        } catch (const RequestError& error) {
          fits = false;
        }
        EXPECT_EQ(plan.problem.empty(), fits) << policy << ' ' << prompt << ' ' << output << ": " << plan.problem;
        ++(fits ? taken : refused);
      }
    }
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(MemoryPlanTest, ListsTheRequestsOwnThenAllThatItMayName) {
  options.allowed_policies = {"full", "streaming", "compact"};
  start();
  const auto plans = engine->plan(make_request(10, 5));
  ASSERT_EQ(plans.size(), 4u);
  EXPECT_EQ(plans[0].kv_cache, "full");
  EXPECT_EQ(plans[1].kv_cache, "compact");
  EXPECT_EQ(plans[2].kv_cache, "full");
  EXPECT_EQ(plans[3].kv_cache, "streaming");
  EXPECT_EQ(plans[1].policy, "");  // values of a head with 16 channels take the bytes of 64
  EXPECT_NE(plans[1].problem.find("kv_cache.bits"), std::string::npos) << plans[1].problem;
  GenerationRequest forbidden = make_request(10, 5);
  forbidden.kv_cache = "random";
  EXPECT_THROW(engine->plan(forbidden), RequestError);
}

// A cache in host memory that the server has not reserved has no shape, and its plan would divide by 0 layers.
TEST_F(MemoryPlanTest, RefusesTheSpeculationThatSubmitRefuses) {
  start();
  for (const PolicyRow& row : policy_registry()) {
    GenerationRequest request = make_request(10, 5);
    request.kv_cache = row.name;
    request.speculative = {{"method", "self"}, {"offload", true}};
    EXPECT_THROW(engine->plan(request), RequestError) << row.name;
  }
  GenerationRequest pillar = make_request(10, 5);
  pillar.speculative = {{"method", "self"}, {"kv_cache", "pillar_attn"}};
  const auto plans = engine->plan(pillar);
  for (size_t i = 1; i < plans.size(); ++i) {
    EXPECT_EQ(plans[i].problem.empty(), plans[i].kv_cache == "full") << plans[i].kv_cache << ": " << plans[i].problem;
  }
  pillar.kv_cache = "streaming";
  EXPECT_THROW(engine->plan(pillar), RequestError);
}

TEST_F(MemoryPlanTest, APromptBeyondTheContextFitsNowhere) {
  start();
  for (const MemoryPlan& plan : engine->plan(make_request(1024, 5))) {
    EXPECT_NE(plan.problem, "") << plan.kv_cache;
  }
}

}  // namespace
}  // namespace smartkv
