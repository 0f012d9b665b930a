// How far attention over a compressed cache is from attention over the full one, for queries that are sampled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"
#include "kernels/kv_backend.h"

namespace smartkv {

constexpr int64_t kMostAttended = 32;

// Which queries are compared: those at positions stride - 1, 2 stride - 1, ... from `first` on.
struct ShadowSampling {
  int64_t stride = 50;
  int64_t first = 0;

  bool contains(int64_t position) const { return position >= first && position % stride == stride - 1; }
  TokenRange within(int64_t begin, int64_t end) const;  // from the first to the last sample in [begin, end)
};

// What a query got from a cache.
struct QueryAttention {
  const SequenceCache& cache;     // before advance(), holding the query's token
  std::span<const float> output;  // [n_heads, head_dim], of the cache's type
  std::span<const float> mass;    // [n_kv_heads, tokens of the view that the query sees], as Probe::mass
};

// The drift of one layer, summed over the samples.
struct LayerDrift {
  int64_t samples = 0;   // queries
  double error = 0;      // |o' - o| / |o| of the attention output of all heads; outputs are of the cache's type
  double error_max = 0;  // the largest
  int64_t sets = 0;      // queries and KV heads for which it is known which tokens the compressed cache holds
  double jaccard = 0;    // of the kMostAttended most attended positions of both

  // One sample: what the query at `position` got from the compressed cache, and from the full one. Quantised pages may
  // hold their tokens in any order: each is taken for the token of its page whose key and value are nearest (at 2 bits
  // some are mistaken, and the Jaccard is a little too low).
  // backend: of both caches' pages.
  void add(kernels::KvBackend& backend, const kernels::AttentionShape& shape, int64_t layer, int64_t position,
           const QueryAttention& compressed, const QueryAttention& full);
  LayerDrift& operator+=(const LayerDrift& other);
};

// Of a query whose token `cache` holds, before advance(); of `query` only the position and q are read. backend: of the
// cache's pages.
std::vector<float> query_output(kernels::KvBackend& backend, const kernels::AttentionShape& shape,
                                const SequenceCache& cache, int64_t layer, const Probe& query);
std::vector<float> query_mass(kernels::KvBackend& backend, const kernels::AttentionShape& shape,
                              const SequenceCache& cache, int64_t layer, const Probe& query);

}  // namespace smartkv
