// Measures how far attention over a compressed cache drifts from attention over the full cache, for sampled queries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"
#include "kernels/kv_attention.h"
#include "kernels/page_ops.h"

namespace smartkv {

// Number of most attended tokens that are compared.
constexpr int64_t kMostAttended = 32;

// Says which queries are compared: the ones at positions stride - 1, 2 stride - 1, ... that are not below `first`.
struct ShadowSampling {
  int64_t stride = 50;
  int64_t first = 0;

  bool contains(int64_t position) const { return position >= first && position % stride == stride - 1; }
  // Returns the range from the first to the last sample in [begin, end).
  TokenRange within(int64_t begin, int64_t end) const;
};

// A query's attention over one cache.
struct QueryAttention {
  const SequenceCache& cache;     // Before advance(); it holds the query's token.
  std::span<const float> output;  // [n_heads, head_dim], rounded to the cache's type.
  std::span<const float> mass;    // [n_kv_heads, visible tokens of the view], as Probe::mass.
};

// The drift of one layer, summed over the samples.
struct LayerDrift {
  // Queries compared.
  int64_t samples = 0;
  // Sum of |o' - o| / |o|, o being the attention output of all heads, rounded to the cache's type.
  double error = 0;
  // The largest term of `error`.
  double error_max = 0;
  // Pairs of query and KV head whose most attended positions were compared.
  int64_t sets = 0;
  // Sum over `sets` of the Jaccard index of the kMostAttended most attended positions of both caches.
  double jaccard = 0;

  // Adds one sample: the attention of the query at `position` over the compressed cache and over the full one.
  // `pages` works on the pages of both caches.
  //
  // Quantized pages may hold their tokens in any order. Each token is identified with the token of its page whose exact
  // key and value are nearest. At 2 bits some are mistaken, which makes the Jaccard index slightly too low.
  void add(kernels::PageOps& pages, const kernels::AttentionShape& shape, int64_t layer, int64_t position,
           const QueryAttention& compressed, const QueryAttention& full);
  LayerDrift& operator+=(const LayerDrift& other);
};

// Returns the attention output, f32 [n_heads, head_dim], or the mass of a query. REQUIRES: `cache` holds the query's
// token and advance() has not been called. Only position and q of `query` are read. `backend` holds the cache's pages.
std::vector<float> query_output(kernels::KvAttention& backend, const kernels::AttentionShape& shape,
                                const SequenceCache& cache, int64_t layer, const Probe& query);
std::vector<float> query_mass(kernels::KvAttention& backend, const kernels::AttentionShape& shape,
                              const SequenceCache& cache, int64_t layer, const Probe& query);

}  // namespace smartkv
