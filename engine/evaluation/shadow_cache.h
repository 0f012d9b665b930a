// Shadow mode: the model reads the full cache while compressed ones follow, fed the same keys and values. At sampled
// positions the model's own queries attend to both, so that errors are those of one layer and do not add up.
#pragma once

#include <memory>
#include <vector>

#include "cache/sequence_cache.h"
#include "cache/shadow/attention_drift.h"
#include "kernels/thread_pool.h"

namespace smartkv {

struct ShadowOptions {
  kernels::AttentionShape shape;
  ShadowSampling sampling;
};

class ShadowCache final : public SequenceCache {
 public:
  // drift: [compressed.size()][n_layers], outlives the cache and its forks; so does `threads`.
  ShadowCache(const ShadowOptions& options, ThreadPool& threads, std::unique_ptr<SequenceCache> full,
              std::vector<std::unique_ptr<SequenceCache>> compressed, std::vector<std::vector<LayerDrift>>* drift);

  int64_t tokens() const override { return full_->tokens(); }
  int64_t committed() const override { return full_->committed(); }
  void reserve(int64_t n) override;
  void write(int64_t layer, const KvRows& rows) override;
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override {
    full_->view(layer, n_new, segments);
  }
  void advance(int64_t n) override;
  void truncate(int64_t n_tokens) override;
  void commit(int64_t n_tokens) override;
  int64_t next_boundary() const override;
  TokenRange probes(int64_t n) const override;
  void observe(int64_t layer, const Probe& probe) override;
  int64_t growth(int64_t n) const override;
  std::unique_ptr<SequenceCache> fork() const override;
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override;
  CacheStats stats() const override { return full_->stats(); }

 private:
  ShadowOptions options_;
  ThreadPool& threads_;
  std::unique_ptr<SequenceCache> full_;
  std::vector<std::unique_ptr<SequenceCache>> compressed_;
  std::vector<std::vector<LayerDrift>>* drift_;
  int64_t pass_tokens_ = 0;  // of the pass under way
};

}  // namespace smartkv
