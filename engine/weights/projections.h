// Layouts of the projections of attention and MLP in files. The model expects each projection as one tensor, with rows
// in the half-split order of RoPE.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/model_config.h"
#include "engine/weights/tensor_view.h"

namespace smartkv {

using TensorMap = std::map<std::string, TensorView, std::less<>>;  // By Hugging Face names.

// Replaces "self_attn.qkv_proj" and "mlp.gate_up_proj" of each layer by views of their parts. A tensor whose number of
// rows is not the sum of its parts stays, so that check_required_tensors() names the missing tensors.
void split_fused_projections(const ModelConfig& config, TensorMap& tensors);

// An MLP of a layer: the tensors PREFIX + "gate_proj.weight", "up_proj.weight" and "down_proj.weight".
struct MlpTensors {
  std::string prefix;
  int64_t size;  // rows of gate and up, columns of down
};
// Returns the MLPs of a layer: one, or its experts in order and then the shared expert, if there is one.
std::vector<MlpTensors> mlps_of(const ModelConfig& config, int64_t layer);
// Returns the size of the MLP that a tensor belongs to.
int64_t mlp_size(const ModelConfig& config, std::string_view tensor);

// Returns the name that this program gives a tensor of a layer with experts: that of Qwen's files, for those of Mixtral
// and Granite ("block_sparse_moe.experts.0.w1.weight", "block_sparse_moe.input_linear.weight") and of transformers 5
// ("mlp.experts.gate_up_proj").
std::string expert_tensor_name(std::string name);
// Replaces tensors that hold a projection of all experts of a layer ("mlp.experts.gate_up_proj.weight" and the like) by
// views of their parts, as split_fused_projections() does. Gives tensors of single experts in older GGUF files
// ("mlp.gate_proj.0.weight") their usual names.
void split_experts(const ModelConfig& config, TensorMap& tensors);
// The same for Hugging Face files of gpt-oss, of layers whose tensors have the shapes that they have there:
//   "mlp.experts.gate_up_proj" [n_experts, hidden_size, 2 expert_size], gate and up in turn, and "_bias" without
//   hidden_size; "mlp.experts.down_proj" [n_experts, expert_size, hidden_size] and "_bias" without expert_size
//   or, as MXFP4, "_blocks" [n_experts, outputs, inputs / 32, 16] and "_scales" [n_experts, outputs, inputs / 32].
void split_gpt_oss_experts(const ModelConfig& config, TensorMap& tensors);

// Returns whether the rows of a tensor are the elements that RoPE rotates: weights and biases of q_proj and k_proj.
bool is_rotated(std::string_view name);

// Both functions return the row of the file that holds row `row` of a projection in the half-split order over all of
// head_dim, in which element i of a head is rotated with element i + head_dim / 2.
// For files in half-split order over rotary_dim elements, followed by the elements that are not rotated.
int64_t half_split_row(const ModelConfig& config, int64_t row);
// For files whose rows are in pairs of neighbours (0, d/2, 1, d/2 + 1, ...).
int64_t interleaved_row(const ModelConfig& config, int64_t row);

}  // namespace smartkv
