// Any policy with its sequences in shadow mode: {"policy": ..., "shadow": 0.02} compares 2% of the token positions with
// the full cache, which is held beside. The answer is the policy's own, bit for bit.
#pragma once

#include "cache/policy.h"

namespace smartkv {

constexpr double kLeastShadowShare = 1e-6;

// share: of the positions that are sampled, in [kLeastShadowShare, 1]; not of a prompt before its last page, where a
// pass over a long chunk would have to show every query between its first and its last sample.
std::unique_ptr<KvCachePolicy> make_shadow_policy(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy,
                                                  double share);
std::vector<CacheMetric> shadow_metrics();  // of its details()

}  // namespace smartkv
