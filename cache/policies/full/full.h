// The full cache: keeps every token exactly as it is. Every other policy is measured against it.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
