// Settings of every policy in the registry for tests of a few hundred tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/policy.h"

namespace smartkv {

// Returns small settings of a policy, so that a few hundred tokens are compressed.
inline nlohmann::json compressing_spec(std::string_view name) {
  if (name == "full") return name;
  if (name == "streaming" || name == "random" || name == "snapkv" || name == "gated_eviction") {
    return {{"policy", name}, {"tokens", 256}};
  }
  if (name == "block_summary") return {{"policy", name}, {"tokens", 320}, {"window", 64}, {"salient", 4}};
  if (name == "mixed_precision") return {{"policy", name}, {"bits", 6}, {"horizon", 1024}};
  if (name == "channel_packed") return {{"policy", name}, {"storage", "codes"}, {"key_channels", 48}, {"update_every", 64}, {"check_every", 128}};
  return {{"policy", name}};
}

// Returns the names of all policies in the registry.
inline std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const PolicyRow& row : policy_registry()) names.emplace_back(row.name);
  return names;
}

}  // namespace smartkv
