// Observes in the attention of the full model how long tokens stay useful. Gates learn these lifespans.
#pragma once

#include <vector>

#include "engine/torch/torch_llama.h"

namespace smartkv {

// A token lives as long as the attention that it has yet to receive, in probabilities summed over queries, exceeds
// `rest`. A single late query that needs the token therefore counts as much as many queries that barely attend to it.
struct LifespanOptions {
  double rest = 0.3;
  int64_t window = 128;       // queries nearer than this do not count, because eviction never touches recent tokens
  int64_t sampled_every = 0;  // keep the probabilities of every n-th query; 0 keeps none
};

// One layer's observations on a window of text.
struct LayerLifespans {
  torch::Tensor keys;  // bf16 [n_kv_heads, length, head_dim]: keys before RoPE
  // i32 [n_kv_heads, length], in tokens. 0 for a token without use beyond LifespanOptions::window.
  torch::Tensor lifespans;
  // f32 [n_kv_heads, length / n, length]: probabilities of the queries n - 1, 2 n - 1, ... with n = sampled_every,
  // averaged over the query heads of each KV head.
  torch::Tensor sampled;
};

// Runs the model over a window and returns the observations of each layer. Lifespans of tokens near the end of the
// window are cut short, because most of their future is not in the window.
std::vector<LayerLifespans> observe_lifespans(const TorchLlama& model, const std::vector<int64_t>& tokens,
                                              const LifespanOptions& options);

}  // namespace smartkv
