// Shadow mode: the model reads the full cache, and compressed caches receive the same keys and values. At sampled
// positions the model's own queries attend to both kinds. The errors are therefore those of a single layer and do not
// add up over layers.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cache/forwarding_cache.h"
#include "cache/shadow/attention_drift.h"
#include "kernels/kv_backend.h"

namespace smartkv {

struct ShadowOptions {
  kernels::AttentionShape shape;
  ShadowSampling sampling;
  std::function<const float*(int64_t layer)> sinks = {};  // AttentionShape::sinks of a layer; may be null
};

// The full cache of a sequence with its compressed followers, which it owns.
class ShadowCache final : public ForwardingCache {
 public:
  // `drift` is [compressed.size()][n_layers] and accumulates the errors. `backend` holds the pages of all caches. Both
  // outlive this cache and its forks.
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
  int64_t pass_tokens_ = 0;  // tokens of the current pass
};

}  // namespace smartkv
