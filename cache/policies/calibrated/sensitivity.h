// How much the error of each channel of keys and values matters to a model, and the widths that follow from it. Also
// how much a token matters.
//
// lambda_d = H_d Var_d: the mean squared error that a channel adds to the residual stream, relative to the stream, if
// its codes keep nothing of it. With b bits a share E(b) of that is left. The widths of all quads of all layers, KV
// heads and sides minimize sum lambda E(b) at the given bytes (reverse water-filling, Cover & Thomas, ch. 10).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/frontier.h"
#include "cache/importance_map.h"
#include "cache/sequence_cache.h"
#include "kernels/calibrated_page.h"

namespace smartkv {

// One side, K or V, of one KV head: f32 [head_dim] each. K: mean before RoPE.
struct SideSensitivity {
  std::vector<float> lambda, mean;
};

struct Sensitivity {
  int64_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  std::vector<SideSensitivity> k, v;      // [n_layers, n_kv_heads]
  std::vector<ImportanceMap> importance;  // [n_layers, n_kv_heads]
  bool by_answers = false;                // lambda also counts what the layers behind make of an error
  Frontier frontier = {};                 // of the model; empty unless by_answers

  // Identifies the values: states of caches that were packed with other ones cannot be used.
  uint64_t fingerprint() const;
};

inline std::shared_ptr<const std::vector<ImportanceMap>> importance_of(std::shared_ptr<const Sensitivity> of) {
  const std::vector<ImportanceMap>* const maps = &of->importance;
  return {std::move(of), maps};
}

// Returns sum lambda E(b) of a side with these widths.
double predicted_error(const SideSensitivity& side, const kernels::ChannelWidths& widths);

// The tables of all layers. With two tiers, lambda counts more for the wide tokens and less for the others, by the
// share of the attention that each tier gets later.
struct ModelWidths {
  std::vector<kernels::WidthTable> layers;
  uint64_t fingerprint = 0;

  int64_t most_page_bytes() const;  // of a page of the layer with the largest ones
};

// Returns the tables with the least error whose pages take at most `bits` bits for each value, every byte counted. They
// have KV heads [first_head, first_head + shape.n_kv_heads) of the model, for tensor-parallel ranks. backend: that of
// the pages; null if no device reads the tables. two_tiers: whether a quarter of a page's tokens have wider codes.
// REQUIRES: bits of at least 0.
std::shared_ptr<const ModelWidths> allocate_widths(const Sensitivity& sensitivity, const CacheShape& shape,
                                                   int64_t first_head, double bits, bool two_tiers,
                                                   const std::shared_ptr<const kernels::PageRotations>& rotations,
                                                   const std::shared_ptr<kernels::KvBackend>& backend);

}  // namespace smartkv
