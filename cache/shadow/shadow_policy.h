// Shadow mode for any policy: {"policy": ..., "shadow": 0.02} holds the full cache beside the policy's and compares the
// two at 2% of the token positions. The answer is the policy's own, bit for bit.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "cache/policy.h"

namespace smartkv {

constexpr double kLeastShadowShare = 1e-6;

// When the drift of a sequence in shadow mode counts as a broken promise, and what happens then.
struct DriftWatch {
  // The mean relative L2 error of attention from which on the promise of the policy counts as broken. The sequence is
  // judged at its boundaries and at its end, from kLeastSamples samples on.
  double most_drift = std::numeric_limits<double>::infinity();
  // Where a sequence goes at a boundary at which its promise is broken, one after the other. Empty: nowhere. They must
  // not have probes.
  std::vector<std::shared_ptr<const KvCachePolicy>> safer = {};

  bool judges() const { return most_drift < std::numeric_limits<double>::infinity(); }
};

// Wraps `policy`. share: fraction of positions that are sampled, in [kLeastShadowShare, 1]. A prompt is sampled in its
// last page only, because otherwise a pass over a long chunk would have to show every query between its first and its
// last sample.
std::unique_ptr<KvCachePolicy> make_shadow_policy(const PolicyContext& context, std::unique_ptr<KvCachePolicy> policy,
                                                  double share, DriftWatch watch = {});
// Metrics of the details() of sequences in shadow mode.
std::vector<CacheMetric> shadow_metrics();

}  // namespace smartkv
