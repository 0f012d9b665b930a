// The list of parameters behind docs/reference/policies.md has those that the policies take, and no others.
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cache/policy_error.h"
#include "tests/cache/policy_parameters.h"

namespace smartkv {
namespace {

using Names = std::set<std::string>;

// Returns the parameters that a policy's error message lists when it is given an unknown one.
Names listed(const PolicyContext& context, const nlohmann::json& spec) {
  const std::string error = policy_error(context, spec), takes = "it takes ";
  if (error.find("takes no parameters") != std::string::npos) return {};
  const size_t at = error.find(takes);
  EXPECT_NE(at, std::string::npos) << spec << ": " << error;
  Names names;
  std::stringstream list(error.substr(at + takes.size()));
  for (std::string name; std::getline(list >> std::ws, name, ',');) names.insert(name);
  return names;
}

TEST(PolicyReference, HasEveryParameterOfEveryPolicy) {
  const CacheShape shape{2, 1, 64, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  // Some parameters are known only together with others.
  const nlohmann::json variants = {{{"unknown", 1}},
                                   {{"unknown", 1}, {"salient", 4}},
                                   {{"unknown", 1}, {"bits", 8.5}},
                                   {{"unknown", 1}, {"storage", "quantized"}}};
  for (const PolicyRow& row : policy_registry()) {
    Names takes;
    for (nlohmann::json spec : variants) {
      spec["policy"] = row.name;
      takes.merge(listed(context, spec));
      if (row.name != "gated_eviction") continue;
      spec.erase("policy");
      for (const std::string& name : listed(context, {{"policy", row.name}, {"lost", spec}})) {
        takes.insert("lost." + name);
      }
    }
    Names documented;
    for (const ListedParameter& parameter : policy_parameters(row)) {
      documented.insert(parameter.path);
      EXPECT_NE(parameter.help, "") << row.name << ": " << parameter.path;
      EXPECT_NE(parameter.values, "") << row.name << ": " << parameter.path;
    }
    EXPECT_EQ(documented, takes) << row.name;
  }
}

TEST(PolicyReference, HasDefaultsAndRanges) {
  const auto is = [](const std::string& policy, const std::string& path, const std::string& fallback,
                     const std::string& values) {
    for (const PolicyRow& row : policy_registry()) {
      if (row.name != policy) continue;
      for (const ListedParameter& parameter : policy_parameters(row)) {
        if (parameter.path == path) return parameter.fallback == fallback && parameter.values == values;
      }
    }
    return false;
  };
  EXPECT_TRUE(is("gated_eviction", "tokens", "1024", "[1, 16777216]"));
  EXPECT_TRUE(is("gated_eviction", "prefill", "\"exact\"", "\"exact\", \"streaming\""));
  EXPECT_TRUE(is("gated_eviction", "lost.tokens", "192", "[64, 16777216]"));
  EXPECT_TRUE(is("mixed_precision", "bits", "4.5", "[1, 16]"));
  EXPECT_TRUE(is("sparse", "index_bits", "2", "2, 3, 4, 8"));
  EXPECT_TRUE(is("channel_packed", "key_channels", "96", "[16, 128]"));
}

TEST(PolicyReference, WidthsAreNumbersOrText) {
  const CacheShape shape{2, 1, 64, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  for (const auto& [policy, parameter] : std::map<std::string, std::string>{
           {"block_summary", "summary_bits"}, {"channel_packed", "key_bits"}, {"sparse", "index_bits"}}) {
    for (const nlohmann::json& good :
         {nlohmann::json(4), nlohmann::json(4.0), nlohmann::json("4"), nlohmann::json(8)}) {
      EXPECT_EQ(policy_error(context, {{"policy", policy}, {parameter, good}}), "no error") << parameter << " " << good;
    }
    for (const nlohmann::json& bad :
         {nlohmann::json(5), nlohmann::json(4.5), nlohmann::json("four"), nlohmann::json(true)}) {
      EXPECT_NE(policy_error(context, {{"policy", policy}, {parameter, bad}})
                    .find("kv_cache." + parameter + ": expected one of"),
                std::string::npos)
          << parameter << " " << bad;
    }
  }
  EXPECT_EQ(policy_error(context, {{"policy", "channel_packed"}, {"value_bits", 2}}), "no error");
}

}  // namespace
}  // namespace smartkv
