// Fits one layer's gate: an MLP from keys before RoPE to log4 of the mean lifespan of tokens with such keys, with AdamW.
//
// Lifespans run from none to the whole text, often for keys that look alike: whether a number is asked for again is not
// written in it. Least squares on their logarithm would learn the geometric mean, which one token in two without use
// brings near 1. The likelihood of an exponential distribution learns the arithmetic mean.
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

// Mean over tokens of l / m - 1 - log(l / m), with l = 1 + lifespan and m = 4^score, its expectation: half the deviance
// of an exponential distribution, 0 at best. A tensor of one element.
torch::Tensor gate_deviance(const torch::Tensor& scores, const torch::Tensor& lifespans);

// The one score for all tokens that has the least deviance: log4 of the mean. A tensor of one element.
torch::Tensor constant_score(const torch::Tensor& lifespans);

// keys: [n, head_dim] of any float type; lifespans: [n]. The MLP sees standardised keys and learns a standardised
// score; both are folded into the returned weights. `progress` gets each epoch's deviance, in that of a constant.
GateLayer fit_gate(const torch::Tensor& keys, const torch::Tensor& lifespans, const GateFitOptions& options,
                   const std::function<void(double loss)>& progress = nullptr);

// What the layer answers in f32. keys: [n, head_dim]; returns f32 [n].
torch::Tensor apply_gate(const GateLayer& layer, const torch::Tensor& keys);

}  // namespace smartkv
