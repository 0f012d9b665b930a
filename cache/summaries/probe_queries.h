// Queries that stand for those to come: what a store saw of the probes before a boundary, and the same queries at later
// positions.
//
// A store that fits summaries needs queries of the kind that will look at them. Keys or prompts made up for it (self-study)
// would cost passes of the model; the last queries before the boundary cost nothing, and RoPE lets them be asked from
// further away, as the queries to come will be.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/policy.h"
#include "cache/state_io.h"
#include "cache/stages/token_store.h"
#include "kernels/block_summarizer.h"

namespace smartkv {

using kernels::SampledQueries;

// Of one layer. Bytes: what the vectors hold.
class ProbeQueries {
 public:
  // Keeps the probe's queries and what it takes to know their softmax's denominator.
  void add(const CacheShape& shape, const StoreProbe& probe);
  void clear();
  void save(StateWriter* out) const;
  void load(const CacheShape& shape, StateReader* in);  // throws CacheError
  bool empty() const { return positions_.empty(); }
  int64_t bytes() const;
  static int64_t most_probe_bytes(const CacheShape& shape);  // that a probe adds to bytes()

  // By KV head, the queries of its group, each at its own position and at `shifts` further on. `tail`: the layer's, with the
  // probes' tokens. Waits for the backend.
  std::vector<SampledQueries> sampled(const PolicyContext& context, const DenseLayer& tail,
                                      const std::vector<int64_t>& shifts) const;

 private:
  // Of a KV head; products: of its queries with the keys that their probe saw, f32 [probes, group, kSeen].
  SampledQueries sampled(const PolicyContext& context, const float* products, int64_t head,
                         const std::vector<int64_t>& shifts) const;

  static constexpr int64_t kSeen = 16;      // of the tail's last tokens: where their mass is kept
  // Of a KV head's query heads, those whose queries are kept: all of them, or so many spread evenly over a larger group.
  // Probes are samples, and a cache knows how much they hold before it knows how many query heads a model has.
  static constexpr int64_t kMostGroup = 8;

  std::vector<int64_t> positions_;
  std::vector<int64_t> seen_;  // by probe: tokens whose mass is kept
  std::vector<float> q_;       // [probes, n_kv_heads, min(group, kMostGroup), head_dim]
  std::vector<float> mass_;    // [probes, n_kv_heads, kSeen], of the tokens before and at the probe, the last one last
};

}  // namespace smartkv
