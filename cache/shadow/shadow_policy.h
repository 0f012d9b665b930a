// Shadow mode for any policy: {"policy": ..., "shadow": 0.02} holds the full cache beside the policy's and compares the
// two at 2% of the token positions. The answer is the policy's own, bit for bit.
#pragma once

#include "cache/policy.h"

namespace smartkv {

constexpr double kLeastShadowShare = 1e-6;

// Wraps `policy`. share: fraction of positions that are sampled, in [kLeastShadowShare, 1]. A prompt is sampled in its
// last page only, because otherwise a pass over a long chunk would have to show every query between its first and its
// last sample.
std::unique_ptr<KvCachePolicy> make_shadow_policy(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy,
                                                  double share);
// Metrics of the details() of sequences in shadow mode.
std::vector<CacheMetric> shadow_metrics();

}  // namespace smartkv
