// How files lay out the projections of attention and MLP that the model expects as one tensor each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "engine/weights/model_config.h"
#include "engine/weights/tensor_view.h"

namespace smartkv {

using TensorMap = std::map<std::string, TensorView, std::less<>>;  // by Hugging Face names

// Replaces "self_attn.qkv_proj" and "mlp.gate_up_proj" of each layer by views of their parts. A tensor that does not
// have as many rows as its parts together stays, for check_required_tensors to name what is missing.
void split_fused_projections(const ModelConfig& config, TensorMap& tensors);

// Whether a tensor's rows are the elements that RoPE rotates: q_proj and k_proj, weights and biases.
bool is_rotated(std::string_view name);

// Row of the file that is row `row` of a head laid out for RoPE in the half-split form over all of head_dim.
// Files whose rows are in half-split form over rotary_dim elements, the others after them:
int64_t half_split_row(const ModelConfig& config, int64_t row);
// Files whose rows are in pairs of neighbours (0, d/2, 1, d/2 + 1, ...):
int64_t interleaved_row(const ModelConfig& config, int64_t row);

}  // namespace smartkv
