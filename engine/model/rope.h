// Rotary position embedding (RoPE): the angles of each position, with the scalings that published LLaMA models use.
// Sources: RoPE, Su et al. 2021; YaRN, Peng et al. 2023; LongRoPE, Ding et al. 2024; the linear, dynamic and llama3
// scalings as Hugging Face transformers defines them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/weights/model_config.h"

namespace smartkv {

class Rope {
 public:
  // context_length: the longest context that is served, in tokens. It alone decides between the short and the long
  // factors of longrope, so that the angles of a position never change.
  Rope(const RopeConfig& config, int64_t head_dim, int64_t context_length);

  // Writes the angles of a position to cos and sin, f32 [head_dim / 2] each. Pairs beyond the first rotary_dim / 2 are
  // not rotated: their cosine is 1 and their sine 0. Dynamic scaling assumes that the sequence ends at `position`, so
  // that the key of a token does not depend on later tokens.
  void angles(int64_t position, float* cos, float* sin) const;

 private:
  RopeConfig config_;
  int64_t head_dim_, rotary_dim_;
  int64_t original_context_;                // tokens
  std::vector<float> inverse_frequencies_;  // [rotary_dim / 2], radians per token
};

}  // namespace smartkv
