// Mixed precision under a byte budget (seed a): see NOTES.md.
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> make_mixed_precision_policy(const PolicyContext& context, const nlohmann::json& parameters);
std::vector<CacheMetric> mixed_precision_metrics();  // of its details()

}  // namespace smartkv
