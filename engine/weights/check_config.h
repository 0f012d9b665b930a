// The sizes that every configuration must have, whatever file it came from.
#pragma once

#include <string>

#include "engine/weights/model_config.h"

namespace smartkv {

// Throws ModelError naming the field: sizes positive and small enough that their products do not overflow,
// n_heads a multiple of n_kv_heads, an even head_dim.
void check_config(const ModelConfig& config, const std::string& file);

}  // namespace smartkv
