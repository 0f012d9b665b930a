// How long tokens stay useful: what the gates learn, observed in the attention of the full model.
#pragma once

#include <vector>

#include "engine/torch/torch_llama.h"

namespace smartkv {

// A token lives until the attention that it will still get adds up to no more than `rest`, in probabilities summed over
// queries. A single late query that needs it thus counts as much as many that barely look.
struct LifespanOptions {
  double rest = 0.3;
  int64_t window = 128;       // queries this near are left out: eviction never touches their tokens
  int64_t sampled_every = 0;  // keep the probabilities of every n-th query; 0: of none
};

// One layer's view of a window of text.
struct LayerLifespans {
  torch::Tensor keys;       // before RoPE: bf16 [n_kv_heads, length, head_dim]
  torch::Tensor lifespans;  // in tokens; 0: no use beyond the window: i32 [n_kv_heads, length]
  // Of the queries n - 1, 2 n - 1, ... (n = sampled_every), the mean over the heads of each group:
  // f32 [n_kv_heads, length / n, length].
  torch::Tensor sampled;
};

// Runs the model over a window. A token near the window's end has seen little of its future: its lifespan is cut short.
std::vector<LayerLifespans> observe_lifespans(const TorchLlama& model, const std::vector<int64_t>& tokens,
                                              const LifespanOptions& options);

}  // namespace smartkv
