// Rotary position embedding: the angles of each position, with the scalings that published LLaMA models use.
// Sources: RoPE, Su et al. 2021; YaRN, Peng et al. 2023; LongRoPE, Ding et al. 2024; linear, dynamic and llama3 as
// Hugging Face transformers defines.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/weights/model_config.h"

namespace smartkv {

class Rope {
 public:
  // context_length: the longest context that is served. It alone chooses between longrope's short and long factors, so
  // that the angles of a position never change.
  Rope(const RopeConfig& config, int64_t head_dim, int64_t context_length);

  // cos, sin: f32 [head_dim / 2]. Beyond the first rotary_dim / 2 pairs nothing is rotated: cosines of 1. Dynamic
  // scaling takes the sequence to end at `position`, so that a token's key depends on nothing that comes later.
  void angles(int64_t position, float* cos, float* sin) const;

 private:
  RopeConfig config_;
  int64_t head_dim_, rotary_dim_;
  int64_t original_context_;
  std::vector<float> inverse_frequencies_;  // [rotary_dim / 2], radians per token
};

}  // namespace smartkv
