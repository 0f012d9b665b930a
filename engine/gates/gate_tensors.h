// Reads tensors of gate files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/weights/model_config.h"
#include "engine/weights/safetensors.h"

namespace smartkv {

// Returns a tensor of this shape as f32. Throws CacheError that names the tensor, and both shapes if they differ.
std::vector<float> read_gate_tensor(const SafetensorsFile& file, const std::string& tensor,
                                    const std::vector<int64_t>& shape);
// Returns the extent of an axis of a tensor with `rank` axes. Throws CacheError that names the tensor if it is missing,
// has another number of axes, or has no elements.
int64_t gate_extent(const SafetensorsFile& file, const std::string& tensor, size_t axis, size_t rank);
// Returns the layers with full attention, which gates are for, in the order of caches.
std::vector<int64_t> gated_layers(const ModelConfig& model);

}  // namespace smartkv
