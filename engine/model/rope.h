// Rotary position embedding: the angles of each position, with the scalings that published LLaMA models use.
// Sources: RoPE, Su et al. 2021; YaRN, Peng et al. 2023; linear, dynamic and llama3 as Hugging Face transformers defines.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/weights/model_config.h"

namespace smartkv {

class Rope {
 public:
  Rope(const RopeConfig& config, int64_t head_dim, int64_t context_length);

  // cos, sin: f32 [head_dim / 2]. Dynamic scaling takes the sequence to end at `position`, so that a token's key
  // depends on nothing that comes later.
  void angles(int64_t position, float* cos, float* sin) const;

 private:
  RopeConfig config_;
  int64_t head_dim_;
  int64_t original_context_;
  std::vector<float> inverse_frequencies_;  // [head_dim / 2], radians per token
  float magnitude_ = 1.0f;                  // YaRN's attention factor, on q and k alike
};

}  // namespace smartkv
