// Shadow mode of a running sequence. Beside the compressed cache, which produces the answer, it holds the full one. At
// a sampled share of token positions the model's own query attends to both. details() reports the drift:
//   drift_samples        positions compared
//   drift_l2_mean, _max  relative L2 error of a layer's attention output, over layers and samples
//   drift_l2_layer_I     mean for layer I
//   drift_jaccard_mean   Jaccard index of the kMostAttended most attended tokens per KV head
//   shadow_bytes         bytes of the full cache and of the sums; part of stats().bytes
// and, if a drift is the limit of a promise:
//   promise_judged       1 once there were kLeastSamples samples
//   promise_broken       1 once the mean drift exceeded the limit
//   promise_steps        times that the sequence went on with a safer policy
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "cache/shadow/attention_drift.h"
#include "cache/shadow/shadow_policy.h"

namespace smartkv {

// The samples and the compressed cache's own probes are joined into one range, so the model also shows the queries in
// between. The compressed cache sees only its own probes.
class ShadowSequence final : public ForwardingCache {
 public:
  // Samples of the current policy from which on a promise is judged: fewer say little.
  static constexpr int64_t kLeastSamples = 16;

  // Samples the positions stride - 1, 2 stride - 1, ..., but none before the last page of the prompt.
  ShadowSequence(const PolicyContext& context, int64_t stride, int64_t prompt_tokens,
                 std::unique_ptr<SequenceCache> compressed, std::unique_ptr<SequenceCache> full,
                 std::shared_ptr<const DriftWatch> watch);
  // Bytes that are held beside the two caches.
  static int64_t state_bytes(const CacheShape& shape);

  void commit(int64_t n_tokens) override;
  int64_t max_growth(int64_t n) const override;
  TokenRange probes(int64_t n) const override;
  void observe(int64_t layer, const Probe& probe) override;
  std::unique_ptr<SequenceCache> fork() const override;
  // The resumed sequence counts its drift from here on. A sequence that has left its policy cannot be resumed.
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override;
  CacheStats stats() const override;
  std::map<std::string, double> details() const override;

 private:
  int64_t shadow_bytes() const { return full_->stats().bytes + state_.bytes(); }
  ShadowSampling sampling() const;
  LayerDrift all_layers() const;
  // Whether the mean of the current policy's samples exceeds the limit. Absent without a limit, or with few samples.
  std::optional<bool> breaks() const;
  // Returns the policy to which a broken promise leads, or null.
  const KvCachePolicy* next() const;
  // Feeds the full cache's keys and values to a cache of the next safer policy, which takes the place of the first one.
  void step_up();

  PolicyContext context_;
  CacheShape shape_;
  PoolCharge state_;
  int64_t stride_, prompt_tokens_;
  std::unique_ptr<SequenceCache> compressed_, full_;
  std::shared_ptr<const DriftWatch> watch_;
  std::vector<LayerDrift> drift_;  // by layer
  LayerDrift at_step_;             // all layers, when the current policy began
  size_t steps_ = 0;
};

}  // namespace smartkv
