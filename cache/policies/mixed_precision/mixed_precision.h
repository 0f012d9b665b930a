// The mixed_precision policy (seed a): mixed precision under a byte budget. See NOTES.md.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_mixed_precision_policy(const PolicyContext& context,
                                                           const nlohmann::json& parameters);
// Metrics of the details() of its sequences.
std::vector<CacheMetric> mixed_precision_metrics();

}  // namespace smartkv
