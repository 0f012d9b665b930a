#include "engine/weights/projections.h"

namespace smartkv {
namespace {

using Part = std::pair<std::string, int64_t>;  // Its name and the number of its rows.

void split(TensorMap& tensors, const std::string& fused, const std::vector<Part>& parts) {
  const auto found = tensors.find(fused);
  int64_t rows = 0;
  for (const auto& [name, n] : parts) rows += n;
  if (found == tensors.end() || found->second.shape.size() != 2 || found->second.rows() != rows) return;
  const TensorView whole = found->second;
  tensors.erase(found);
  const size_t row_bytes = whole.data.size() / static_cast<size_t>(rows);
  size_t first = 0;
  for (const auto& [name, n] : parts) {
    TensorView view = whole;
    view.name = name;
    view.shape[0] = n;
    view.first_row = whole.first_row + static_cast<int64_t>(first);
    if (whole.integers == nullptr)
      view.data = whole.data.subspan(first * row_bytes, static_cast<size_t>(n) * row_bytes);
    first += static_cast<size_t>(n);
    tensors[name] = std::move(view);
  }
}

}  // namespace

void split_fused_projections(const ModelConfig& config, TensorMap& tensors) {
  const int64_t q = config.n_heads * config.head_dim, kv = config.n_kv_heads * config.head_dim;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    split(tensors, layer + "self_attn.qkv_proj.weight",
          {{layer + "self_attn.q_proj.weight", q},
           {layer + "self_attn.k_proj.weight", kv},
           {layer + "self_attn.v_proj.weight", kv}});
    split(tensors, layer + "mlp.gate_up_proj.weight",
          {{layer + "mlp.gate_proj.weight", config.intermediate_size},
           {layer + "mlp.up_proj.weight", config.intermediate_size}});
  }
}

bool is_rotated(std::string_view name) {
  return name.find(".q_proj.") != std::string_view::npos || name.find(".k_proj.") != std::string_view::npos;
}

int64_t half_split_row(const ModelConfig& config, int64_t row) {
  const int64_t dim = config.head_dim, rotary = config.rope.rotary_dim;
  if (rotary == 0 || rotary == dim) return row;
  const int64_t head = row / dim, half = row % dim / (dim / 2), i = row % (dim / 2);
  // Pair i is (i, i + rotary / 2) in the file. Elements that are not rotated form pairs in any order, because their
  // cosine is 1.
  const int64_t from = i < rotary / 2 ? half * rotary / 2 + i : rotary + half * (dim - rotary) / 2 + i - rotary / 2;
  return head * dim + from;
}

int64_t interleaved_row(const ModelConfig& config, int64_t row) {
  const int64_t dim = config.head_dim, head = row / dim, i = row % dim;
  return head * dim + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1);
}

}  // namespace smartkv
