// The maps of learned gates (cache/policies/gated_eviction/gate.h), packed, and what they make of keys and values.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/linear.h"

namespace smartkv::kernels {

struct GateMaps {
  static constexpr int64_t kDepth = 4;
  static constexpr int64_t kHidden = 256;
  struct Map {
    PackedMatrix weight;  // bf16: [kHidden, head_dim], [kHidden, kHidden] twice, [1, kHidden]
    std::vector<float> bias;
  };

  using Layer = std::array<Map, kDepth>;

  int64_t n_kv_heads = 0, head_dim = 0;  // of the keys and values that are there
  std::vector<std::shared_ptr<const Layer>> layers;
  // By layer, f32 [importance_heads, importance_features + 1], a constant last; empty: there are none.
  std::vector<std::vector<float>> importance;
  int64_t importance_heads = 0;  // above n_kv_heads: of those the other ranks have the others' keys and values

  int64_t importance_features() const { return 2 * n_kv_heads * head_dim; }
};

// log4 of expected lifespans. keys: f32 [n, head_dim] before RoPE, of any KV heads of `layer`; scores: f32 [n]. A key's score is
// the same bits whatever n, its neighbours and the threads.
void gate_scores(ThreadPool& threads, const GateMaps& gate, int64_t layer, const float* keys, int64_t n, float* scores);

// What these KV heads add to the importance of tokens [from, end) of n in head `head` of importance_heads. keys, values: f32 [n_kv_heads, n, head_dim], keys before RoPE; scores:
// f32 [n]. A token's is the same bits whatever its neighbours.
void gate_importance(const GateMaps& gate, int64_t layer, int64_t head, const float* keys, const float* values, int64_t n,
                     int64_t from, int64_t end, float* scores);

}  // namespace smartkv::kernels
