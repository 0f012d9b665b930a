// The tensors that a configuration implies.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "engine/weights/weights.h"

namespace smartkv {

// Throws ModelError naming the first tensor that is missing, has another shape, or does not belong to the model. `file`
// names the source in errors.
void check_required_tensors(const Weights& weights, const std::string& file);
// Throws ModelError if `tensor` is absent or does not have this shape. file: the source in errors; may be empty.
void check_shape(const std::string& name, const std::optional<TensorView>& tensor, std::span<const int64_t> shape,
                 const std::string& file);

}  // namespace smartkv
