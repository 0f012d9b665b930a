// Shadow mode: the model reads the full cache while compressed ones follow, fed the same keys and values. At sampled
// positions the model's own queries attend to both, so that errors are those of one layer and do not add up.
#pragma once

#include <memory>
#include <vector>

#include "cache/sequence_cache.h"
#include "kernels/attention.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// How far a compressed cache was from the full one in one layer, summed over the samples.
struct LayerDrift {
  int64_t samples = 0;   // queries
  double error = 0;      // |o' - o| / |o| of the attention output of all heads; outputs are of the cache's type
  double error_max = 0;  // the largest
  int64_t sets = 0;      // queries and KV heads for which it is known which tokens the compressed cache holds
  double jaccard = 0;    // of the most attended positions of both
};
constexpr int64_t kMostAttended = 32;

struct ShadowOptions {
  kernels::AttentionShape shape;
  int64_t stride = 50;  // every stride-th query is sampled
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
  std::unique_ptr<SequenceCache> fork() const override;
  CacheStats stats() const override { return full_->stats(); }

 private:
  bool sampled(int64_t position) const { return position % options_.stride == options_.stride - 1; }
  void attend(const SequenceCache& cache, int64_t layer, const Probe& probe, std::vector<float>* output);
  void measure(const SequenceCache& cache, int64_t layer, const Probe& probe, std::span<const float> mass,
               LayerDrift* drift);

  ShadowOptions options_;
  ThreadPool& threads_;
  std::unique_ptr<SequenceCache> full_;
  std::vector<std::unique_ptr<SequenceCache>> compressed_;
  std::vector<std::vector<LayerDrift>>* drift_;
  int64_t pass_tokens_ = 0;  // of the pass under way
  std::vector<kernels::KvSegment> segments_;
  std::vector<float> mass_, full_output_, output_;
  std::vector<uint16_t> bf16_output_;
  kernels::AttentionScratch scratch_;
};

}  // namespace smartkv
