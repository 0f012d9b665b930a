// Settings of every policy in the registry for tests of a few hundred tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/policy.h"

namespace smartkv {

// Returns small settings of a policy, so that a few hundred tokens are compressed.
inline nlohmann::json compressing_spec(std::string_view name) {
  nlohmann::json spec = {{"policy", name}};
  for (const PolicyRow& row : policy_registry()) {
    if (row.name == name) spec.update(nlohmann::json::parse(row.brief_trial));
  }
  return spec;
}

// Returns the names of all policies in the registry.
inline std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const PolicyRow& row : policy_registry()) names.emplace_back(row.name);
  return names;
}

}  // namespace smartkv
