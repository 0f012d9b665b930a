#include "lab/evaluation/policy_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/sequence_cache.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

std::string policy_list_error(std::string_view text) {
  try {
    parse_policy_list(text);
  } catch (const CacheError& error) {
    return error.what();
  }
  return "";
}

TEST(PolicyList, TakesNamesSharesBitsAndObjects) {
  const auto specs =
      parse_policy_list(R"(streaming@0.25, k4v4,mixed_precision@4.5,{"policy": "x", "list": [1, 2], "text": "},{"})");
  ASSERT_EQ(specs.size(), 5u);
  EXPECT_EQ(specs[0].label, "full");
  EXPECT_EQ(specs[1].label, "streaming@0.25");
  EXPECT_EQ(specs[1].for_context(4096), (nlohmann::json{{"policy", "streaming"}, {"tokens", 1024}}));
  EXPECT_EQ(specs[2].for_context(4096), nlohmann::json("k4v4"));
  EXPECT_EQ(specs[3].for_context(4096), (nlohmann::json{{"policy", "mixed_precision"}, {"bits", 4.5}}));
  EXPECT_EQ(specs[4].for_context(4096)["text"], "},{");
  EXPECT_EQ(specs[4].label, R"({"policy": "x", "list": [1, 2], "text": "},{"})");
}

TEST(PolicyList, AnObjectTakesAShareToo) {
  const auto specs = parse_policy_list(R"({"policy": "a", "x": "@}"}@0.25,{"policy": "b"}@3.5)");
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[1].for_context(4096), (nlohmann::json{{"policy", "a"}, {"x", "@}"}, {"tokens", 1024}}));
  EXPECT_EQ(specs[1].label, R"({"policy": "a", "x": "@}"}@0.25)");
  EXPECT_EQ(specs[2].for_context(4096), (nlohmann::json{{"policy", "b"}, {"bits", 3.5}}));
  EXPECT_THAT(policy_list_error(R"({"policy": "a", "tokens": 64}@0.25)"),
              HasSubstr("expected either \"tokens\" or @X"));
  EXPECT_THAT(policy_list_error(R"({"policy": "a"}@)"), HasSubstr("NAME@X"));
}

TEST(PolicyList, RoundsAShareUpToWholeTokens) {
  EXPECT_EQ(parse_policy_list("s@0.25")[1].for_context(1001)["tokens"], 251);
  EXPECT_EQ(parse_policy_list("s@0.1")[1].for_context(1000)["tokens"], 100);  // 0.1 * 1000 is a little above 100
}

TEST(PolicyList, LeavesTheReferenceOutWhereItIsNotListed) {
  const auto labels = [](std::string_view text) {
    std::vector<std::string> found;
    for (const PolicySpec& spec : parse_policy_list(text, FullReference::kWhereListed)) found.push_back(spec.label);
    return found;
  };
  EXPECT_EQ(labels(R"(k4v4,{"policy":"full"})"), (std::vector<std::string>{"k4v4", R"({"policy":"full"})"}));
  EXPECT_EQ(labels("k4v4,full"), (std::vector<std::string>{"full", "k4v4"}));
}

TEST(PolicyList, PutsTheReferenceFirstOnce) {
  const auto specs = parse_policy_list("k4v4,full");
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[0].label, "full");
  EXPECT_EQ(specs[1].label, "k4v4");
  EXPECT_EQ(parse_policy_list("full").size(), 1u);
}

TEST(PolicyList, QuotesTheItemAtFault) {
  EXPECT_THAT(policy_list_error(""), HasSubstr("found nothing"));
  EXPECT_THAT(policy_list_error("k4v4,,k8v8"), HasSubstr("found nothing"));
  EXPECT_THAT(policy_list_error("streaming@"), HasSubstr("\"streaming@\""));
  EXPECT_THAT(policy_list_error("streaming@0.25x"), HasSubstr("\"streaming@0.25x\""));
  EXPECT_THAT(policy_list_error("streaming@-1"), HasSubstr("\"streaming@-1\""));
  EXPECT_THAT(policy_list_error("streaming@inf"), HasSubstr("\"streaming@inf\""));
  EXPECT_THAT(policy_list_error("@0.5"), HasSubstr("\"@0.5\""));
  EXPECT_THAT(policy_list_error("{\"policy\": }"), HasSubstr("{\"policy\": }"));
  EXPECT_THAT(policy_list_error("k4v4,k4v4"), HasSubstr("twice"));
}

}  // namespace
}  // namespace smartkv
