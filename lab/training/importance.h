// The importance of tokens for later questions, which the second head of a gate learns. The model repeats a window of
// text. The importance of a token is the most attention that any query of the repetition pays to it (KVzip, Kim et al.
// 2025), times the norm of what its value adds to the residual stream.
#pragma once

#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "engine/torch/torch_llama.h"

namespace smartkv {

// Fits linear maps from the keys before RoPE and the values of a token, in all KV heads of a layer, to the logarithm of
// its importance in each KV head, by ridge regression. It accumulates sums over all windows observed so far.
class ImportanceFit {
 public:
  explicit ImportanceFit(const ModelConfig& config);

  // Adds a window. The model reads `window`, `request` and the window again.
  void observe(const TorchLlama& model, const std::vector<int64_t>& window, const std::vector<int64_t>& request);
  // Returns the map of each layer, in the layout of GateLayer::importance. `ridge` is relative to the mean square of
  // each feature.
  std::vector<std::vector<float>> fit(double ridge) const;
  // Returns the share of the labels' variance in a window that `maps` explain, averaged over layers and KV heads.
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
