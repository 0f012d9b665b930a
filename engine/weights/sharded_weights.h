// A rank's part of a model that several compute together (tensor parallel): some KV heads with their query heads, and
// some of the MLP. Norms, embedding, head and the residual stream are every rank's alike.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/weights/weights.h"

namespace smartkv {

// Of `size` ranks, numbered from 0.
struct Shard {
  int64_t rank = 0, size = 1;
};

struct ShardRange {
  int64_t first = 0, n = 0;
};
// Of n things, the part of a shard: as many each as can be, the first ones one more.
ShardRange shard_range(int64_t n, const Shard& shard);

std::vector<int64_t> shard_sizes(int64_t n, int64_t size);  // of all shards

// Throws ModelError naming tensor_parallel, where the model cannot be cut so: fewer KV heads than ranks, or norms over all heads.
void check_shards(const ModelConfig& config, int64_t size);
// The part's n_heads, n_kv_heads and intermediate_size.
ModelConfig shard_config(ModelConfig config, const Shard& shard);

// `weights` under shard_config(weights.config()). `weights` outlives the result. Of a tensor that is cut find() gives the shape and no
// bytes: its rows are read as floats, integers among them.
std::unique_ptr<Weights> shard_weights(const Weights& weights, const Shard& shard);

}  // namespace smartkv
