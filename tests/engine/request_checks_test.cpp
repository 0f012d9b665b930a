// Policies and speculative methods that operators allow requests to name.
#include "engine/request_checks.h"

#include <gtest/gtest.h>

namespace smartkv {
namespace {

struct Refusal {
  std::string param, message;
};

template <typename Check>
Refusal refusal(const Check& check) {
  try {
    check();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.kind, RequestError::Kind::kInvalid);
    return {error.param, error.what()};
  }
  return {};
}

Refusal of_request(const EngineOptions& options, nlohmann::json kv_cache, nlohmann::json speculative) {
  GenerationRequest request;
  request.kv_cache = std::move(kv_cache);
  request.speculative = std::move(speculative);
  return refusal([&] { check_allowed(request, options); });
}

using nlohmann::json;

TEST(RequestChecks, WithoutListsEverythingIsAllowed) {
  EXPECT_EQ(of_request({}, "k2v2", "self").param, "");
  EXPECT_EQ(refusal([] { check_allowed_lists({}); }).param, "");
}

TEST(RequestChecks, OnlyListedPoliciesMayBeNamed) {
  EngineOptions options;
  options.allowed_policies = {"full", "balanced"};
  EXPECT_EQ(of_request(options, nullptr, nullptr).param, "");
  EXPECT_EQ(of_request(options, "balanced", nullptr).param, "");
  EXPECT_EQ(of_request(options, json{{"policy", "balanced"}, {"bits", 5}}, "ngram").param, "");
  const Refusal refused = of_request(options, "k2v2", nullptr);
  EXPECT_EQ(refused.param, "kv_cache");
  EXPECT_EQ(refused.message,
            "kv_cache: expected one of \"full\", \"balanced\", which this server allows "
            "(allowed_policies), found \"k2v2\"");
  EXPECT_EQ(of_request(options, "mixed_precision", nullptr).param, "kv_cache");  // the policy of the preset
  const json nested = {{"method", "self"}, {"kv_cache", {{"policy", "k2v2"}}}};
  EXPECT_EQ(of_request(options, nullptr, nested).param, "speculative.kv_cache");
  EXPECT_EQ(of_request(options, nullptr, json{{"method", "self"}, {"kv_cache", "k2v2"}}).param, "speculative.kv_cache");
  EXPECT_EQ(of_request(options, nullptr, json{{"method", "self"}, {"kv_cache", "full"}}).param, "");
}

TEST(RequestChecks, OnlyListedMethodsMayBeNamed) {
  EngineOptions options;
  options.allowed_speculation = {"ngram"};
  EXPECT_EQ(of_request(options, "k2v2", "ngram").param, "");
  EXPECT_EQ(of_request(options, nullptr, "off").param, "");
  EXPECT_EQ(of_request(options, nullptr, "self").param, "speculative");
  EXPECT_EQ(of_request(options, nullptr, json{{"method", "auto"}}).param, "speculative");
}

TEST(RequestChecks, TheListsHoldKnownNamesAndTheDefaults) {
  const auto of_lists = [](const EngineOptions& options) {
    return refusal([&] { check_allowed_lists(options); }).param;
  };
  EngineOptions options;
  options.allowed_policies = {"balanced"};
  EXPECT_EQ(of_lists(options), "kv_cache");  // the default is "full"
  options.kv_cache = {{"policy", "balanced"}, {"bits", 5}};
  EXPECT_EQ(of_lists(options), "");
  options.allowed_policies.push_back("ballanced");
  EXPECT_EQ(of_lists(options), "allowed_policies");
  options.allowed_policies.pop_back();
  options.allowed_speculation = {"ngram"};
  EXPECT_EQ(of_lists(options), "");
  options.speculative = "auto";
  EXPECT_EQ(of_lists(options), "speculative");
  options.allowed_speculation = {"ngrams"};
  EXPECT_EQ(of_lists(options), "allowed_speculation");
}

}  // namespace
}  // namespace smartkv
