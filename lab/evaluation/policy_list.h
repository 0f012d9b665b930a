// Parses the list of policies that an evaluation gets on the command line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

struct PolicySpec {
  std::string label;      // as typed
  nlohmann::json policy;  // a name or an object, for make_policy()
  // X of NAME@X or {...}@X. Below 1 it is a share of the context's tokens, otherwise it is bits per value. 0 if there
  // is no X.
  double amount = 0;

  // Returns the specification for a context of `context` tokens. NAME@0.25 becomes {"policy": NAME, "tokens": context /
  // 4}.
  nlohmann::json for_context(int64_t context) const;
};

// Whether the reference "full" is added to a list that does not contain it.
enum class FullReference { kAlways, kWhereListed };

// Parses a comma-separated list of names and JSON objects, each with or without @X. If "full" is in the result, it
// comes first. Throws CacheError quoting the item at fault.
std::vector<PolicySpec> parse_policy_list(std::string_view text, FullReference full = FullReference::kAlways);

}  // namespace smartkv
