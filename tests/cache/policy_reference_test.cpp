// docs/reference/policies.md must list the parameters that the policies take, and no others.
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/cache/policy_error.h"

namespace smartkv {
namespace {

using Names = std::set<std::string>;

Names quoted_in(const std::string& text) {
  static const std::regex quoted("`([^`]+)`");
  Names names;
  for (std::sregex_iterator it(text.begin(), text.end(), quoted), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}

// Returns the names in the first cells of each section's table, by the policies that its heading names.
std::map<std::string, Names> documented() {
  std::ifstream file(std::string(SMARTKV_SOURCE) + "/docs/reference/policies.md");
  std::map<std::string, Names> sections;
  Names current;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      current = line == "## Every policy" ? Names{"every policy"} : quoted_in(line);
      for (const std::string& name : current) sections[name];
    } else if (line.starts_with("| `")) {
      const Names names = quoted_in(line.substr(0, line.find('|', 1)));
      for (const std::string& name : current) sections[name].insert(names.begin(), names.end());
    }
  }
  return sections;
}

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
  std::map<std::string, Names> sections = documented();
  EXPECT_EQ(sections["every policy"], Names{"shadow"});
  sections.erase("every policy");
  // Some parameters are listed only together with others.
  const nlohmann::json variants = {{{"unknown", 1}}, {{"unknown", 1}, {"salient", 4}}, {{"unknown", 1}, {"bits", 8.5}}, {{"unknown", 1}, {"storage", "codes"}}};
  const auto expect = [&](const std::string& name, const std::function<nlohmann::json(nlohmann::json)>& spec) {
    Names takes;
    for (const nlohmann::json& variant : variants) takes.merge(listed(context, spec(variant)));
    EXPECT_EQ(sections[name], takes) << "docs/reference/policies.md, section `" << name << '`';
    sections.erase(name);
  };
  for (const PolicyRow& row : policy_registry()) {
    expect(std::string(row.name), [&](nlohmann::json spec) {
      spec["policy"] = row.name;
      return spec;
    });
  }
  expect("lost", [](const nlohmann::json& spec) { return nlohmann::json{{"policy", "gated_eviction"}, {"lost", spec}}; });
  for (const auto& [name, parameters] : sections) ADD_FAILURE() << "no policy is named `" << name << '`';
}

TEST(PolicyReference, WidthsAreNumbersOrText) {
  const CacheShape shape{2, 1, 64, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  for (const auto& [policy, parameter] : std::map<std::string, std::string>{
           {"block_summary", "summary_bits"}, {"channel_packed", "key_bits"}, {"sparse", "index_bits"}}) {
    for (const nlohmann::json& good : {nlohmann::json(4), nlohmann::json(4.0), nlohmann::json("4"), nlohmann::json(8)}) {
      EXPECT_EQ(policy_error(context, {{"policy", policy}, {parameter, good}}), "no error") << parameter << " " << good;
    }
    for (const nlohmann::json& bad : {nlohmann::json(5), nlohmann::json(4.5), nlohmann::json("four"), nlohmann::json(true)}) {
      EXPECT_NE(policy_error(context, {{"policy", policy}, {parameter, bad}}).find("kv_cache." + parameter + ": expected one of"),
                std::string::npos)
          << parameter << " " << bad;
    }
  }
  EXPECT_EQ(policy_error(context, {{"policy", "channel_packed"}, {"value_bits", 2}}), "no error");
}

}  // namespace
}  // namespace smartkv
