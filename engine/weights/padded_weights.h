// Models of odd shapes, as the kernels take them: with zeros in the place of what is missing, which changes no result.
#pragma once

#include <memory>

#include "engine/weights/weights.h"

namespace smartkv {

// Multiples of 16 stay as they are. Another head_dim becomes the next one, or one of 32 where the heads are odd in number; another
// intermediate_size the next multiple of 32. What is rotated, and what attention's products are scaled by, stay the model's own.
// Norms of queries and keys, which count the zeros, make up for it by their weights and their epsilon. Throws ModelError for a head_dim above 256.
ModelConfig padded_config(ModelConfig config);

// `weights` under padded_config(weights.config()); nullptr where that is its own. `weights` outlives the result. Of a tensor
// with zeros find() gives the shape and no bytes: its rows are read as floats, integers among them.
std::unique_ptr<Weights> pad_weights(const Weights& weights);

}  // namespace smartkv
