// Shadow mode of a running sequence. Beside the compressed cache, which produces the answer, it holds the full one. At
// a sampled share of token positions the model's own query attends to both. details() reports the drift:
//   drift_samples        positions compared
//   drift_l2_mean, _max  relative L2 error of a layer's attention output, over layers and samples
//   drift_l2_layer_I     mean for layer I
//   drift_jaccard_mean   Jaccard index of the kMostAttended most attended tokens per KV head
//   shadow_bytes         bytes of the full cache and of the sums; part of stats().bytes
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/policy.h"
#include "cache/shadow/attention_drift.h"

namespace smartkv {

// The samples and the compressed cache's own probes are joined into one range, so the model also shows the queries in
// between. The compressed cache sees only its own probes.
class ShadowSequence final : public ForwardingCache {
 public:
  ShadowSequence(const PolicyContext& context, const ShadowSampling& sampling,
                 std::unique_ptr<SequenceCache> compressed, std::unique_ptr<SequenceCache> full);
  // Returns the samples of a sequence with this prompt. There are none before the last page of the prompt.
  static ShadowSampling sampling(int64_t stride, int64_t prompt_tokens);
  // Bytes that are held beside the two caches.
  static int64_t state_bytes(const CacheShape& shape);

  TokenRange probes(int64_t n) const override;
  void observe(int64_t layer, const Probe& probe) override;
  std::unique_ptr<SequenceCache> fork() const override;
  // The resumed sequence counts its drift from here on.
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
