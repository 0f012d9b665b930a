// The policies of an evaluation as the command line names them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

struct PolicySpec {
  std::string label;      // as typed
  nlohmann::json policy;  // a name or an object, for make_policy
  double amount = 0;      // of NAME@X or {...}@X: X below 1 is a share of the context's tokens, else bits per value; 0: none

  // What make_policy gets for a context of `context` tokens: NAME@0.25 is {"policy": NAME, "tokens": a quarter of
  // them}.
  nlohmann::json for_context(int64_t context) const;
};

// A comma-separated list of names and JSON objects, either with @X or without. "full", the reference, comes first: whether listed or not, or
// only where it is. Throws CacheError quoting the item at fault.
enum class FullReference { kAlways, kWhereListed };
std::vector<PolicySpec> parse_policy_list(std::string_view text, FullReference full = FullReference::kAlways);

}  // namespace smartkv
