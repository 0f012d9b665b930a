// Learned per-layer eviction (seed b): every KV head keeps the tokens whose keys its layer's gate expects to live
// longest.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_gated_eviction_policy(const PolicyContext& context,
                                                          const nlohmann::json& parameters);

}  // namespace smartkv
