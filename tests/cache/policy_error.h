#pragma once

#include <string>

#include "cache/policy.h"

namespace smartkv {

// Returns the message of the error that make_policy() throws for `spec`, or "no error" if it succeeds.
inline std::string policy_error(const PolicyContext& context, const nlohmann::json& spec) {
  try {
    make_policy(context, spec);
  } catch (const CacheError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace smartkv
