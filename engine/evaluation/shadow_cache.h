// Shadow mode: the model reads the full cache while compressed ones follow, fed the same keys and values. At sampled
// positions the model's own queries attend to both, so that errors are those of one layer and do not add up.
#pragma once

#include <memory>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/shadow/attention_drift.h"

namespace smartkv {

struct ShadowOptions {
  kernels::AttentionShape shape;
  ShadowSampling sampling;
};

class ShadowCache final : public ForwardingCache {
 public:
  // drift: [compressed.size()][n_layers], outlives the cache and its forks; so does `backend`, of the caches' pages.
  ShadowCache(const ShadowOptions& options, kernels::KvBackend& backend, std::unique_ptr<SequenceCache> full,
              std::vector<std::unique_ptr<SequenceCache>> compressed, std::vector<std::vector<LayerDrift>>* drift);

  void reserve(int64_t n) override;
  TokenRange probes(int64_t n) const override;
  void observe(int64_t layer, const Probe& probe) override;
  std::unique_ptr<SequenceCache> fork() const override;
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override;

 private:
  ShadowOptions options_;
  kernels::KvBackend& backend_;
  std::unique_ptr<SequenceCache> full_;
  std::vector<std::unique_ptr<SequenceCache>> compressed_;
  std::vector<std::vector<LayerDrift>>* drift_;
  int64_t pass_tokens_ = 0;  // of the pass under way
};

}  // namespace smartkv
