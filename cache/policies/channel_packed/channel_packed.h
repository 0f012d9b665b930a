// Keys without the channels that do not matter, behind a fidelity guard (seed d).
#pragma once

#include "cache/policy.h"

namespace smartkv {

// What channel_packed declares for /metrics.
std::vector<CacheMetric> channel_packed_metrics();

std::unique_ptr<KvCachePolicy> make_channel_packed_policy(const PolicyContext& context, const nlohmann::json& parameters);

}  // namespace smartkv
