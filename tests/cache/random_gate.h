#pragma once

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "cache/policies/gated_eviction/head_gate.h"
#include "cache/policies/gated_eviction/hidden_gate.h"
#include "cache/sequence_cache.h"

namespace smartkv {

// Returns a gate with random weights, in the shapes of a gate that ships for a model.
inline std::shared_ptr<const LifespanGate> random_gate(const CacheShape& shape) {
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
  return std::make_shared<LifespanGate>(shape.n_kv_heads, shape.head_dim, layers);
}

// Returns a linear KVzap gate with random weights.
inline std::shared_ptr<const HiddenGate> random_hidden_gate(const CacheShape& shape, int64_t hidden_size) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<KvzapLayer> layers(static_cast<size_t>(shape.n_layers));
  for (KvzapLayer& layer : layers) {
    KvzapLayer::Map& map = layer.maps.emplace_back();
    map.weight.resize(static_cast<size_t>(shape.n_kv_heads * hidden_size));
    map.bias.resize(static_cast<size_t>(shape.n_kv_heads));
    for (std::vector<float>* of : {&map.weight, &map.bias}) {
      for (float& w : *of) w = normal(random);
    }
  }
  return make_kvzap_gate(hidden_size, shape.n_kv_heads, 0, layers);
}

// Returns a gate with random scores of KV heads.
inline std::shared_ptr<const HeadGate> random_head_gate(const CacheShape& shape) {
  std::mt19937 random(13);
  std::uniform_real_distribution<float> uniform;
  std::vector<float> scores(static_cast<size_t>(shape.n_layers * shape.n_kv_heads));
  for (float& score : scores) score = uniform(random);
  return std::make_shared<HeadGate>(shape.n_kv_heads, std::move(scores));
}

}  // namespace smartkv
