// Shadow mode of a running sequence: beside its compressed cache, which answers, it holds the full one. At a sampled
// share of token positions the model's own query attends to both; the drift is told by details():
//   drift_samples        positions compared
//   drift_l2_mean, _max  relative L2 error of a layer's attention output, over layers and samples
//   drift_l2_layer_I     the mean of layer I
//   drift_jaccard_mean   of the kMostAttended most attended tokens per KV head, where the held positions are known
//   shadow_bytes         of the full cache and the sums; part of stats().bytes
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "cache/shadow/attention_drift.h"

namespace smartkv {

// The samples join the compressed cache's own probes in one range, so the model also shows the queries between; the
// compressed cache sees none but its own.
class ShadowSequence final : public ForwardingCache {
 public:
  ShadowSequence(const PolicyContext& context, const ShadowSampling& sampling,
                 std::unique_ptr<SequenceCache> compressed, std::unique_ptr<SequenceCache> full);
  // The samples of a sequence with this prompt: none before its last page.
  static ShadowSampling sampling(int64_t stride, int64_t prompt_tokens);
  static int64_t state_bytes(const CacheShape& shape);  // held beside the two caches

  TokenRange probes(int64_t n) const override;
  void observe(int64_t layer, const Probe& probe) override;
  std::unique_ptr<SequenceCache> fork() const override;
  // It compares what comes from here on.
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override;
  CacheStats stats() const override;
  std::map<std::string, double> details() const override;

 private:
  int64_t shadow_bytes() const { return full_->stats().bytes + state_.bytes(); }

  PolicyContext context_;
  CacheShape shape_;
  PoolCharge state_;
  ShadowSampling sampling_;
  std::unique_ptr<SequenceCache> compressed_, full_;
  std::vector<LayerDrift> drift_;  // by layer
};

}  // namespace smartkv
