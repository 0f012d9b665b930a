// Base of weights that change the shapes of other weights while they are read: padded_weights.h, sharded_weights.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/weights/weights.h"

namespace smartkv {

class ReshapedWeights : public Weights {
 public:
  const ModelConfig& config() const override { return config_; }
  const GgufFile* gguf() const override { return weights_.gguf(); }
  std::string stored_as() const override { return weights_.stored_as(); }
  std::string format() const override { return weights_.format(); }
  std::vector<std::string> names() const override { return weights_.names(); }
  std::span<const int32_t> output_tokens() const override { return weights_.output_tokens(); }

 protected:
  // `weights` must outlive this object. config: the configuration with the new shapes.
  ReshapedWeights(const Weights& weights, ModelConfig config) : weights_(weights), config_(std::move(config)) {}

  const Weights& weights_;
  ModelConfig config_;
};

}  // namespace smartkv
