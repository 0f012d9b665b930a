#pragma once

#include <memory>
#include <random>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "cache/sequence_cache.h"

namespace smartkv {

// Returns a gate with random weights, in the shapes of a gate that ships for a model.
inline std::shared_ptr<const Gate> random_gate(const CacheShape& shape) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::vector<GateLayer> layers(static_cast<size_t>(shape.n_layers));
  for (GateLayer& layer : layers) {
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      const auto [out, in] = GateLayer::shape(i, shape.head_dim);
      auto& weight = layer.weight[static_cast<size_t>(i)];
      weight.resize(static_cast<size_t>(out * in));
      for (float& w : weight) w = normal(random);
      layer.bias[static_cast<size_t>(i)].assign(static_cast<size_t>(out), 0.01f);
    }
    layer.importance.resize(
        static_cast<size_t>(shape.n_kv_heads * (GateLayer::importance_features(shape.n_kv_heads, shape.head_dim) + 1)));
    for (float& w : layer.importance) w = normal(random);
  }
  return std::make_shared<Gate>(shape.n_kv_heads, shape.head_dim, layers);
}

}  // namespace smartkv
