// How much each token matters to somebody who asks about it later: what the gates' second head learns. The model is made to
// repeat a window of text; a token is as important as the strongest look that any query of the repetition takes at it
// (KVzip, Kim et al. 2025), weighed by what its value adds to the residual stream.
#pragma once

#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "engine/torch/torch_llama.h"

namespace smartkv {

// Linear maps from what a cache holds of a token, all its KV heads' keys before RoPE and values, to the logarithm of its
// importance, by ridge regression: sums over all windows so far.
class ImportanceFit {
 public:
  explicit ImportanceFit(const ModelConfig& config);

  // The model reads `window`, `request` and the window again.
  void observe(const TorchLlama& model, const std::vector<int64_t>& window, const std::vector<int64_t>& request);
  // Each layer's map as GateLayer::importance. `ridge`: in each feature's mean square.
  std::vector<std::vector<float>> fit(double ridge) const;
  // The share of the labels' variance in a window that `maps` explain, mean over layers and KV heads.
  double explained(const TorchLlama& model, const std::vector<int64_t>& window, const std::vector<int64_t>& request,
                   const std::vector<std::vector<float>>& maps) const;

 private:
  struct Observed {
    torch::Tensor features, labels;  // f64 [n, features + 1], [n, n_kv_heads]
  };
  std::vector<Observed> observe_layers(const TorchLlama& model, const std::vector<int64_t>& window,
                                       const std::vector<int64_t>& request) const;

  ModelConfig config_;
  std::vector<torch::Tensor> gram_, rhs_;  // f64 [features + 1, features + 1], [features + 1, n_kv_heads]
};

}  // namespace smartkv
