// The full cache: every token, exact. The reference that every other policy is measured against.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
