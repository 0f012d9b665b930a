#include "cache/presets.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cache/policy_error.h"
#include "tests/cache/random_sensitivity.h"

namespace smartkv {
namespace {

class Presets : public testing::Test {
 protected:
  std::string message(const nlohmann::json& spec) const { return policy_error(context_, spec); }
  CacheShape shape_{2, 1, 64, kernels::KvType::kBf16};
  PolicyContext context_{shape_, PagePool::create(shape_)};
};

TEST_F(Presets, AreNamesForSettings) {
  const auto preset = make_policy(context_, "compact"),
             spelled = make_policy(context_, {{"policy", "mixed_precision"}, {"bits", 3.5}});
  EXPECT_EQ(preset->name(), "mixed_precision");
  EXPECT_EQ(preset->max_bytes(0, 8000), spelled->max_bytes(0, 8000));
}

TEST_F(Presets, TakeOverrides) {
  const auto wider = make_policy(context_, {{"policy", "balanced"}, {"bits", 8}});
  EXPECT_GT(wider->max_bytes(0, 8000), make_policy(context_, "balanced")->max_bytes(0, 8000));
  EXPECT_NE(message({{"policy", "balanced"}, {"bitz", 8}}).find("kv_cache.bitz"), std::string::npos);
}

// The context has neither a gate nor a calibration.
TEST_F(Presets, AreNeverRejected) {
  for (const PolicyPreset& preset : policy_presets()) {
    const auto policy = make_policy(context_, std::string(preset.name));
    EXPECT_NE(policy->stand_in(), "") << preset.name;
    EXPECT_EQ(policy->stand_in(), make_policy(context_, {{"policy", preset.name}, {"shadow", 0.5}})->stand_in());
  }
  EXPECT_EQ(make_policy(context_, "balanced")->stand_in(), "mixed_precision, because the model was not calibrated");
  EXPECT_EQ(make_policy(context_, "tiny")->stand_in(),
            "gated_eviction, because the model was not calibrated; scorer attention, because the model has no gate and "
            "was not calibrated");
  EXPECT_EQ(make_policy(context_, "bounded")->stand_in(),
            "scorer attention, because the model has no gate and was not calibrated");
  EXPECT_THROW(make_policy(context_, {{"policy", "gated_eviction"}, {"scorer", "learned"}}), ModelLacks);
  EXPECT_THROW(make_policy(context_, "calibrated"), ModelLacks);
}

TEST_F(Presets, AreWhatTheyStandForIfTheModelHasIt) {
  PolicyContext context = context_;
  context.load_sensitivity = [sensitivity = random_sensitivity(context.shape)] { return sensitivity; };
  context.rope = [half = shape_.head_dim / 2](int64_t, float* cos, float* sin) {
    std::fill(cos, cos + half, 1.0f);
    std::fill(sin, sin + half, 0.0f);
  };
  const auto balanced = make_policy(context, "balanced");
  EXPECT_EQ(balanced->name(), "calibrated");
  EXPECT_EQ(balanced->stand_in(), "");
  const auto tiny = make_policy(context, "tiny");
  EXPECT_EQ(tiny->name(), "calibrated");
  EXPECT_EQ(tiny->stand_in(), "");
  EXPECT_EQ(make_policy(context, "bounded")->stand_in(), "scorer calibrated, because the model has no gate");
}

TEST_F(Presets, AreNamedWhereANameIsUnknown) { EXPECT_NE(message("balancd").find("\"balanced\""), std::string::npos); }

TEST_F(Presets, EveryErrorNamesItsKey) {
  EXPECT_NE(message({{"policy", "mixed_precision"}, {"bits", "four"}})
                .find("kv_cache.bits: expected a number in [1, 16], found \"four\""),
            std::string::npos);
  EXPECT_NE(message({{"policy", "gated_eviction"}, {"scorer", "key_norm"}, {"sizes", "shared"}})
                .find("kv_cache.sizes: \"shared\""),
            std::string::npos);
  EXPECT_NE(message({{"policy", "gated_eviction"}, {"scorer", "attention"}, {"sizes", "shared"}, {"lost", "summaries"}})
                .find("kv_cache.sizes: \"shared\" needs \"lost\""),
            std::string::npos);
  EXPECT_NE(message({{"policy", "gated_eviction"}, {"scorer", "key_norm"}, {"importance_margin", 0.5}})
                .find("kv_cache.importance_margin: expected \"sizes\""),
            std::string::npos);
  EXPECT_NE(message({{"policy", "gated_eviction"}, {"scorer", "key_norm"}, {"kept", "k4v4"}, {"prefill", "streaming"}})
                .find("kv_cache.kept: expected \"dense\" with heads of equal size"),
            std::string::npos);
  EXPECT_NE(message({{"policy", "gated_eviction"}, {"scorer", "luck"}})
                .find("kv_cache.scorer: expected one of \"best\", \"learned\""),
            std::string::npos);
  EXPECT_NE(message({{"policy", "streaming"}, {"tokens", 10}}).find("kv_cache.tokens: expected an integer in [192, "),
            std::string::npos);
  EXPECT_NE(message({{"policy", "random"}, {"tokens", 100}}).find("kv_cache.tokens: expected at least 192"),
            std::string::npos);
  EXPECT_NE(message({{"policy", "random"}, {"tokens", -1}}).find("kv_cache.tokens"), std::string::npos);
  EXPECT_NE(message({{"policy", "k4v4"}, {"window", 1e30}}).find("kv_cache.window"), std::string::npos);
}

}  // namespace
}  // namespace smartkv
