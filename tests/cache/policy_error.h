#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "cache/policy.h"

namespace smartkv {

// What make_policy() says against `spec`; "no error" if it makes the policy.
inline std::string policy_error(const PolicyContext& context, const nlohmann::json& spec) {
  try {
    make_policy(context, spec);
  } catch (const CacheError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace smartkv
