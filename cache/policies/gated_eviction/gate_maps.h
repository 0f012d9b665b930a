// The packed maps of learned gates (gate.h), and the scores that they compute from keys and values.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/linear.h"

namespace smartkv {

// Packs a linear map, f32 [out_features, in_features], in bf16. REQUIRES: in_features is even.
kernels::PackedMatrix pack_map(const std::vector<float>& weight, int64_t out_features, int64_t in_features);

// One gate: for each layer, kDepth linear maps with ReLU between them, and the linear maps of importance.
struct GateMaps {
  static constexpr int64_t kDepth = 4;
  static constexpr int64_t kHidden = 256;
  struct Map {
    kernels::PackedMatrix weight;  // bf16: [kHidden, head_dim], [kHidden, kHidden] twice, [1, kHidden]
    std::vector<float> bias;
  };

  using Layer = std::array<Map, kDepth>;

  int64_t n_kv_heads = 0, head_dim = 0;  // KV heads that this process holds, and their size.
  std::vector<std::shared_ptr<const Layer>> layers;
  // For each layer, f32 [importance_heads, importance_features() + 1]. The last element of a row is a constant. Empty
  // if the gate has no importance maps.
  std::vector<std::vector<float>> importance;
  // May exceed n_kv_heads: other tensor-parallel ranks hold keys and values of the other heads.
  int64_t importance_heads = 0;

  int64_t importance_features() const { return 2 * n_kv_heads * head_dim; }
};

// Computes log4 of the expected lifespans. keys: f32 [n, head_dim] before RoPE, of any KV heads of `layer`; scores: f32
// [n]. The score of a key has the same bits whatever n, the other keys and the number of threads are.
void gate_scores(ThreadPool& threads, const GateMaps& gate, int64_t layer, const float* keys, int64_t n, float* scores);

// Computes what the KV heads of this process add to the importance of tokens [from, end) in head `head` of
// importance_heads. keys, values: f32 [n_kv_heads, n, head_dim], keys before RoPE; scores: f32 [n]. The result of a
// token has the same bits whatever its neighbors are.
void gate_importance(const GateMaps& gate, int64_t layer, int64_t head, const float* keys, const float* values,
                     int64_t n, int64_t from, int64_t end, float* scores);

}  // namespace smartkv
