// The tensors that a configuration implies.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/weights/weights.h"

namespace smartkv {

// Throws ModelError naming the first tensor that is missing, has another shape, or has no place in the model.
void check_required_tensors(const Weights& weights, const std::string& file);
void check_shape(const std::string& name, const std::optional<TensorView>& tensor, std::span<const int64_t> shape,
                 const std::string& file);

}  // namespace smartkv
