#include "engine/weights/projections.h"

namespace smartkv {
namespace {

using Part = std::pair<std::string, int64_t>;  // Its name and the number of its rows.

void split(TensorMap& tensors, const std::string& fused, const std::vector<Part>& parts) {
  const auto found = tensors.find(fused);
  int64_t rows = 0;
  for (const auto& [name, n] : parts) rows += n;
  if (found == tensors.end() || found->second.shape.size() != 2 || found->second.rows() != rows) return;
  const TensorView whole = std::move(found->second);
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

std::string layer_name(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }
std::string expert_prefix(int64_t layer, int64_t expert) {
  return layer_name(layer) + "mlp.experts." + std::to_string(expert) + ".";
}

}  // namespace

std::vector<MlpTensors> mlps_of(const ModelConfig& config, int64_t layer) {
  if (!config.has_experts(layer)) return {{layer_name(layer) + "mlp.", config.intermediate_size}};
  std::vector<MlpTensors> mlps;
  for (int64_t i = 0; i < config.n_experts; ++i) mlps.push_back({expert_prefix(layer, i), config.expert_size});
  if (config.shared_expert_size > 0) {
    mlps.push_back({layer_name(layer) + "mlp.shared_expert.", config.shared_expert_size});
  }
  return mlps;
}

int64_t mlp_size(const ModelConfig& config, std::string_view tensor) {
  const auto has = [&](std::string_view part) { return tensor.find(part) != std::string_view::npos; };
  return has(".mlp.experts.")         ? config.expert_size
         : has(".mlp.shared_expert.") ? config.shared_expert_size
                                      : config.intermediate_size;
}

std::string expert_tensor_name(std::string name) {
  constexpr std::string_view kNames[][2] = {{".block_sparse_moe.", ".mlp."},
                                            {".mlp.router.layer.", ".mlp.gate."},
                                            {".mlp.router.", ".mlp.gate."},
                                            {".mlp.input_linear.", ".mlp.experts.gate_up_proj."},
                                            {".mlp.output_linear.", ".mlp.experts.down_proj."}};
  constexpr std::string_view kMixtral[][2] = {{".w1.", ".gate_proj."}, {".w2.", ".down_proj."}, {".w3.", ".up_proj."}};
  const auto replace = [&name](std::string_view from, std::string_view to) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
  };
  for (const auto& [from, to] : kNames) replace(from, to);
  if (name.find(".mlp.experts.") != std::string::npos) {
    for (const auto& [from, to] : kMixtral) replace(from, to);
  }
  for (const char* fused : {".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"}) {
    if (name.ends_with(fused)) name += ".weight";
  }
  return name;
}

void split_experts(const ModelConfig& config, TensorMap& tensors) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.has_experts(layer)) continue;
    const std::string mlp = layer_name(layer) + "mlp.";
    for (const std::string projection : {"gate_proj", "up_proj", "down_proj", "gate_up_proj"}) {
      for (const std::string suffix : {".weight", ".scale"}) {
        const std::string fused = mlp + "experts." + projection + suffix;
        const auto found = tensors.find(fused);
        if (found == tensors.end()) continue;
        TensorView& view = found->second;
        if (view.shape.empty() || view.shape.front() != config.n_experts) continue;
        const bool factor = view.shape.size() == 1;
        const int64_t width = factor ? 1 : view.row_elements(), rows = view.elements() / width / config.n_experts;
        std::vector<Part> parts;
        for (int64_t i = 0; i < config.n_experts; ++i) {
          const std::string expert = expert_prefix(layer, i);
          if (projection == "gate_up_proj" && !factor) {
            parts.emplace_back(expert + "gate_proj" + suffix, rows / 2);
            parts.emplace_back(expert + "up_proj" + suffix, rows / 2);
          } else {
            parts.emplace_back(expert + projection + suffix, rows);
          }
        }
        view.shape = {rows * config.n_experts, width};
        split(tensors, fused, parts);
      }
    }
    if (!tensors.contains(mlp + "gate_proj.0.weight")) continue;
    for (int64_t i = 0; i < config.n_experts; ++i) {
      for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
        auto node = tensors.extract(mlp + projection + "." + std::to_string(i) + ".weight");
        if (node.empty()) continue;
        node.key() = expert_prefix(layer, i) + projection + ".weight";
        tensors.insert(std::move(node));
      }
    }
  }
}

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
