// Where a client sees the results of speculative decoding.
#include <gmock/gmock.h>

#include "server/http/metrics.h"
#include "server/openai/usage.h"

namespace smartkv {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SpeculationUsage some_usage() {
  SpeculationUsage usage;
  usage.method = "ngram";
  usage.drafted = 40;
  usage.accepted = 25;
  usage.passes = 10;
  usage.rewinds = 7;
  usage.rewound_tokens = 15;
  usage.fallbacks = 1;
  usage.draft_ms = 1.5;
  usage.accepted_at = {10, 8, 5, 2};
  return usage;
}

TEST(SpeculationUsage, IsPartOfTheUsage) {
  RequestUsage usage;
  EXPECT_FALSE(openai::usage_json(usage).contains("speculative"));
  usage.speculation = some_usage();
  const openai::Json written = openai::usage_json(usage);
  EXPECT_EQ(written["completion_tokens_details"]["accepted_prediction_tokens"], 25);
  EXPECT_EQ(written["completion_tokens_details"]["rejected_prediction_tokens"], 15);
  EXPECT_EQ(written["speculative"],
            openai::Json::parse(R"({"method": "ngram", "drafted": 40, "accepted": 25, "passes": 10,
      "rewinds": 7, "rewound_tokens": 15, "fallbacks": 1, "exact": true, "accepted_per_position": [10, 8, 5, 2], "draft_ms": 1.5,
      "acceptance_rate": 0.625})"));
  usage.speculation = {};
  usage.speculation.method = "ngram";
  usage.speculation.exact = false;
  EXPECT_FALSE(openai::usage_json(usage)["speculative"].contains("acceptance_rate"));  // nothing was drafted
  EXPECT_EQ(openai::usage_json(usage)["speculative"]["exact"], false);
}

TEST(SpeculationUsage, Adds) {
  SpeculationUsage sum = some_usage(), longer;
  longer.drafted = longer.accepted = 5;
  longer.passes = longer.rewinds = longer.rewound_tokens = longer.fallbacks = 1;
  longer.accepted_at = {1, 1, 1, 1, 1};
  sum.add(longer);
  EXPECT_EQ(sum.drafted, 45);
  EXPECT_EQ(sum.accepted, 30);
  EXPECT_EQ(sum.passes, 11);
  EXPECT_EQ(sum.rewinds, 8);
  EXPECT_EQ(sum.rewound_tokens, 16);
  EXPECT_EQ(sum.fallbacks, 2);
  EXPECT_THAT(sum.accepted_at, ::testing::ElementsAre(11, 9, 6, 3, 1));
}

// 8 tokens are drafted and the first 3 are accepted.
TEST(SpeculationUsage, ARoundRewindsWhatDoesNotStand) {
  SpeculationUsage usage;
  usage.add_round(8, 3, 4);  // 3 accepted tokens and the model's own
  EXPECT_EQ(usage.rewinds, 1);
  EXPECT_EQ(usage.rewound_tokens, 5);
  usage.add_round(8, 3, 3);  // the third token ends the answer, so no pass will read it
  EXPECT_EQ(usage.rewound_tokens, 11);
  usage.add_round(2, 2, 3);
  EXPECT_EQ(usage.rewinds, 2);
  EXPECT_EQ(usage.rewound_tokens, 11);
  EXPECT_EQ(usage.drafted, 18);
  EXPECT_THAT(usage.accepted_at, ::testing::ElementsAre(3, 3, 2, 0, 0, 0, 0, 0));
}

TEST(PolicyMetrics, EachPolicyHasALabel) {
  EngineStats stats;
  const http::RequestCounter requests;
  EXPECT_THAT(http::metrics_text(stats, "m", requests), ::testing::Not(HasSubstr("policy=")));
  stats.policies["full"] = {
      .sequences = 2, .bytes = 300, .full_bytes = 300, .prompt_tokens = 40, .generation_tokens = 5};
  stats.policies["mixed_precision"] = {
      .sequences = 1, .bytes = 50, .full_bytes = 200, .prompt_tokens = 30, .generation_tokens = 6};
  stats.policies["mixed_precision"].tiers.tokens[4] = 96;
  stats.policies["mixed_precision"].tiers.bytes[kExactTier] = 1024;
  const std::string text = http::metrics_text(stats, "m", requests);
  for (const char* line : {
           "smartkv:policy_tier_tokens{model_name=\"m\",policy=\"mixed_precision\",tier=\"4_bit\"} 96\n",
           "smartkv:policy_tier_kv_bytes{model_name=\"m\",policy=\"mixed_precision\",tier=\"exact\"} 1024\n",
           "smartkv:policy_tier_kv_bytes{model_name=\"m\",policy=\"full\",tier=\"evicted\"} 0\n",
           "# TYPE smartkv:policy_kv_bytes gauge\n",
           "smartkv:policy_sequences{model_name=\"m\",policy=\"full\"} 2\n",
           "smartkv:policy_kv_bytes{model_name=\"m\",policy=\"mixed_precision\"} 50\n",
           "smartkv:policy_kv_full_bytes{model_name=\"m\",policy=\"mixed_precision\"} 200\n",
           "smartkv:policy_prompt_tokens_total{model_name=\"m\",policy=\"full\"} 40\n",
           "smartkv:policy_generation_tokens_total{model_name=\"m\",policy=\"mixed_precision\"} 6\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(SpeculationMetrics, CountersHaveBothPrefixes) {
  EngineStats stats;
  const http::RequestCounter requests;
  EXPECT_THAT(http::metrics_text(stats, "m", requests),
              HasSubstr("smartkv:spec_decode_num_drafts_total{model_name=\"m\"} 0\n"));
  EXPECT_THAT(http::metrics_text(stats, "m", requests), Not(HasSubstr("acceptance_rate")));  // nothing was drafted
  stats.speculation = some_usage();
  const std::string text = http::metrics_text(stats, "m", requests);
  for (const std::string prefix : {"smartkv:", "vllm:"}) {
    const std::string name = "\n" + prefix + "spec_decode_num_";
    EXPECT_THAT(text, HasSubstr(name + "drafts_total{model_name=\"m\"} 10\n"));
    EXPECT_THAT(text, HasSubstr(name + "draft_tokens_total{model_name=\"m\"} 40\n"));
    EXPECT_THAT(text, HasSubstr(name + "accepted_tokens_total{model_name=\"m\"} 25\n"));
    EXPECT_THAT(text, HasSubstr(name + "accepted_tokens_per_pos_total{model_name=\"m\",position=\"3\"} 2\n"));
    EXPECT_THAT(text, HasSubstr("\n" + prefix + "spec_decode_draft_acceptance_rate{model_name=\"m\"} 0.625\n"));
  }
  EXPECT_THAT(text, HasSubstr("\nsmartkv:spec_decode_num_rewinds_total{model_name=\"m\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("\nsmartkv:spec_decode_num_rewound_tokens_total{model_name=\"m\"} 15\n"));
  EXPECT_THAT(text, HasSubstr("\nsmartkv:spec_decode_num_fallbacks_total{model_name=\"m\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("position=\"4\"")));
}

}  // namespace
}  // namespace smartkv
