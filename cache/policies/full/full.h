// The full cache: every token that some query may still see, exact; without sliding windows that is every token. The
// reference that every other policy is measured against.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
