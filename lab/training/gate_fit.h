// Fits the gate of one layer with AdamW: an MLP from keys before RoPE to log4 of the mean lifespan of tokens with such
// keys.
//
// Similar keys often have very different lifespans, from zero to the whole text: a number does not reveal whether a
// later question asks for it. Least squares on the logarithm would learn the geometric mean, which is near 1 if every
// second token is never used. The likelihood of an exponential distribution learns the arithmetic mean instead.
#pragma once

#include <torch/torch.h>

#include <functional>

#include "cache/policies/gated_eviction/gate.h"

namespace smartkv {

struct GateFitOptions {
  int64_t epochs = 6;
  int64_t batch = 1024;
  double learning_rate = 2e-3;  // peak rate, after a linear warm-up; then it follows a cosine down to 0
  double weight_decay = 0.01;
  uint64_t seed = 1;
};

// Returns half the deviance of an exponential distribution: the mean over tokens of l / m - 1 - log(l / m), where
// l = 1 + lifespan and m = 4^score is its expectation. The best value is 0. The result is a tensor of one element.
torch::Tensor gate_deviance(const torch::Tensor& scores, const torch::Tensor& lifespans);

// Returns the score that, given to all tokens alike, has the least deviance: log4 of the mean of 1 + lifespan. The
// result is a tensor of one element.
torch::Tensor constant_score(const torch::Tensor& lifespans);

// Fits a gate. `keys` is [n, head_dim] of any float type, `lifespans` is [n] in tokens. The MLP sees standardised keys
// and learns a standardised score; the returned weights include both transformations. `progress` receives the deviance
// of each epoch, divided by that of the best constant score.
GateLayer fit_gate(const torch::Tensor& keys, const torch::Tensor& lifespans, const GateFitOptions& options,
                   const std::function<void(double loss)>& progress = nullptr);

// Returns the layer's scores, f32 [n], computed in f32. `keys` is [n, head_dim].
torch::Tensor apply_gate(const GateLayer& layer, const torch::Tensor& keys);

}  // namespace smartkv
