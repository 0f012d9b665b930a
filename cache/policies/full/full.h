// The full cache: keeps every token that some query may still see, exactly as it is. Without sliding windows that is
// every token. Every other policy is measured against it.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
