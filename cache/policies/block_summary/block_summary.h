// An exact window, and summaries of everything before it (seed c).
#pragma once

#include "cache/policy.h"

namespace smartkv {

std::vector<CacheMetric> block_summary_metrics();  // of its details()
std::unique_ptr<KvCachePolicy> make_block_summary_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
