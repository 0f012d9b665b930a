// The block_summary policy (seed c): an exact window, and summaries of everything before it.
#pragma once

#include "cache/policy.h"

namespace smartkv {

// Metrics of the details() of its sequences.
std::vector<CacheMetric> block_summary_metrics();
std::unique_ptr<KvCachePolicy> make_block_summary_policy(const PolicyContext& context,
                                                         const nlohmann::json& parameters);

}  // namespace smartkv
