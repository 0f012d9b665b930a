// The part of a model that one tensor-parallel rank computes: some KV heads with their query heads, and some columns of
// the MLP. Norms, embedding, head and the residual stream are the same on every tensor-parallel rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/weights/weights.h"

namespace smartkv {

// The part of tensor-parallel rank `rank` of `size`, numbered from 0.
struct Shard {
  int64_t rank = 0, size = 1;
};

// Items [first, first + n).
struct ShardRange {
  int64_t first = 0, n = 0;
};
// Returns the part of a shard of n items. Parts are equal, except that the first n % size shards have one item more.
ShardRange shard_range(int64_t n, const Shard& shard);

std::vector<int64_t> shard_sizes(int64_t n, int64_t size);  // Returns shard_range().n of each shard.

// Throws ModelError naming tensor_parallel if the model cannot be divided among `size` ranks: it has fewer KV heads (or
// MLP columns) than ranks, or its qk-norm is over all heads.
void check_shards(const ModelConfig& config, int64_t size);
// Returns the configuration with n_heads, n_kv_heads and intermediate_size of the shard.
ModelConfig shard_config(ModelConfig config, const Shard& shard);

// Returns the weights with the shapes of shard_config(weights.config()). `weights` must outlive the result. For a
// tensor that is divided, find() returns the shape without bytes: its rows can only be read as floats, even if the file
// has integers.
std::unique_ptr<Weights> shard_weights(const Weights& weights, const Shard& shard);

}  // namespace smartkv
