// Models with shapes that the kernels do not support, padded with zeros to shapes that they do. Padding changes no
// result.
#pragma once

#include <memory>

#include "engine/weights/weights.h"

namespace smartkv {

// Returns the configuration with padded sizes.
//  - A head_dim or intermediate_size that is a multiple of 16 stays.
//  - Any other head_dim becomes the next multiple of 16, or of 32 if the number of heads is odd.
//  - Any other intermediate_size becomes the next multiple of 32.
// The rotated elements and the scale of attention stay those of the model. The qk-norm counts the zeros; its weights
// and its epsilon are changed to make up for that. Throws ModelError if the padded head_dim is above 256.
ModelConfig padded_config(ModelConfig config);

// Returns the weights with the shapes of padded_config(weights.config()), or nullptr if these are the model's own
// shapes. `weights` must outlive the result. For a padded tensor, find() returns type and shape without bytes: its rows
// can only be read as floats, even if the file has integers.
std::unique_ptr<Weights> pad_weights(const Weights& weights);

}  // namespace smartkv
