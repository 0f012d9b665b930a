#pragma once

#include <cmath>
#include <memory>
#include <random>

#include "cache/policies/calibrated/sensitivity.h"

namespace smartkv {

// Returns a random sensitivity, which differs as much from channel to channel as that of real models.
inline std::shared_ptr<const Sensitivity> random_sensitivity(const CacheShape& shape) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  auto result = std::make_shared<Sensitivity>();
  result->n_layers = shape.n_layers;
  result->n_kv_heads = shape.n_kv_heads;
  result->head_dim = shape.head_dim;
  for (auto* sides : {&result->k, &result->v}) {
    for (int64_t i = 0; i < shape.n_layers * shape.n_kv_heads; ++i) {
      SideSensitivity& side = sides->emplace_back();
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        side.lambda.push_back(std::exp2(3.0f * normal(random)));
        side.mean.push_back(0.1f * normal(random));
      }
    }
  }
  for (int64_t i = 0; i < shape.n_layers * shape.n_kv_heads; ++i) {
    std::vector<float>& weights = result->importance.emplace_back().weights;
    for (int64_t j = 0; j < ImportanceMap::n_features(shape.head_dim); ++j) weights.push_back(normal(random));
  }
  return result;
}

}  // namespace smartkv
