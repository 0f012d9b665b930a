// Fits one layer's gate: an MLP from keys before RoPE to log4(lifespan), by least squares with AdamW.
#pragma once

#include <torch/torch.h>

#include <functional>

#include "cache/policies/gated_eviction/gate.h"

namespace smartkv {

struct GateFitOptions {
  int64_t epochs = 6;
  int64_t batch = 1024;
  double learning_rate = 2e-3;  // at its peak: linear warm-up, then a cosine down to 0
  double weight_decay = 0.01;
  uint64_t seed = 1;
};

// log4(1 + lifespan): a token that no query uses scores 0.
torch::Tensor gate_target(const torch::Tensor& lifespans);

// keys: [n, head_dim] of any float type; target: f32 [n]. The MLP sees standardised keys and learns a standardised
// target; both are folded into the returned weights. `progress` gets each epoch's mean squared error, in the target's
// variance.
GateLayer fit_gate(const torch::Tensor& keys, const torch::Tensor& target, const GateFitOptions& options,
                   const std::function<void(double loss)>& progress = nullptr);

// What the layer answers in f32. keys: [n, head_dim]; returns f32 [n].
torch::Tensor apply_gate(const GateLayer& layer, const torch::Tensor& keys);

}  // namespace smartkv
