// Checks that apply to every configuration, whatever file it came from.
#pragma once

#include <string>

#include "engine/weights/model_config.h"

namespace smartkv {

// Throws ModelError naming the field that is out of range. Sizes must be positive, and small enough that their products
// do not overflow; n_heads must be a multiple of n_kv_heads; head_dim must be even; scale factors and multipliers must
// be positive, and lists of RoPE factors as long as the rotated half of a head. `file` names the source in errors.
void check_config(const ModelConfig& config, const std::string& file);

}  // namespace smartkv
