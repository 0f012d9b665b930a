// The channel_packed policy (seed d): keys without the channels that do not matter, behind a fidelity guard. It makes a
// CutStore for exact storage and a ChannelStore for quantized storage.
#pragma once

#include "cache/policy.h"

namespace smartkv {

// Returns the metrics that channel_packed declares for /metrics.
std::vector<CacheMetric> channel_packed_metrics();

// Throws CacheError naming the parameter at fault.
std::unique_ptr<KvCachePolicy> make_channel_packed_policy(const PolicyContext& context,
                                                          const nlohmann::json& parameters);

}  // namespace smartkv
