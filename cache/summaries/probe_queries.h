// Queries that stand for the queries to come: the probe queries that a store saw before a boundary, and the same
// queries shifted to later positions.
//
// A store that fits summaries needs queries like the ones that will attend to them. Making up keys or prompts for it
// (self-study) would cost passes of the model. The last queries before the boundary cost nothing, and RoPE allows
// asking them from further away, as later queries will be.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/policy.h"
#include "cache/state_io.h"
#include "cache/stores/token_store.h"
#include "cache/summaries/sampled_queries.h"

namespace smartkv {

// The probe queries of one layer.
class ProbeQueries {
 public:
  // Keeps the probe's queries, and the mass of the last tokens they saw, from which the denominators of their softmax
  // are recovered.
  void add(const CacheShape& shape, const StoreProbe& probe);
  void clear();
  void save(StateWriter* out) const;
  void load(const CacheShape& shape, StateReader* in);  // Throws CacheError.
  bool empty() const { return positions_.empty(); }
  int64_t bytes() const;  // Bytes that the vectors hold.
  // Upper bound of what one probe adds to bytes().
  static int64_t most_probe_bytes(const CacheShape& shape);

  // Returns, by KV head, the queries of its group, each at its own position and moved on by each of `shifts`. `tail` is
  // the layer's tail, which still has the tokens of the probes. Waits for the backend.
  std::vector<SampledQueries> sampled(const PolicyContext& context, const DenseLayer& tail,
                                      const std::vector<int64_t>& shifts) const;

 private:
  // The same for one KV head. products: f32 [probes, group, kSeen], its queries times the keys of the last tokens that
  // their probe saw.
  SampledQueries sampled(const PolicyContext& context, const float* products, int64_t head,
                         const std::vector<int64_t>& shifts) const;

  // Tokens at the end of the tail for which a probe's mass is kept.
  static constexpr int64_t kSeen = 16;
  // Query heads of a KV head for which queries are kept: all of them, or this many spread evenly over a larger group. A
  // limit is needed because a cache must know how many bytes probes take before it knows how many query heads the model
  // has.
  static constexpr int64_t kMostGroup = 8;

  std::vector<int64_t> positions_;
  std::vector<int64_t> seen_;  // By probe: tokens for which mass_ is known.
  std::vector<float> q_;       // [probes, n_kv_heads, min(group, kMostGroup), head_dim]
  // [probes, n_kv_heads, kSeen]: mass of the last tokens up to and including the probe's own, which is the last. Zeros
  // come first if there are fewer.
  std::vector<float> mass_;
};

}  // namespace smartkv
