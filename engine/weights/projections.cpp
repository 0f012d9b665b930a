#include "engine/weights/projections.h"

#include <memory>
#include <optional>

#include "engine/weights/packed_integers.h"
#include "engine/weights/quantized_rows.h"

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

// Takes a tensor of this shape out of the map.
std::optional<TensorView> take(TensorMap& tensors, const std::string& name, const std::vector<int64_t>& shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.shape != shape) return std::nullopt;
  TensorView view = std::move(found->second);
  tensors.erase(found);
  return view;
}

// Returns the bytes of an expert in a tensor of all experts, without its first `skipped` elements.
std::span<const std::byte> bytes_of_expert(const TensorView& whole, int64_t expert, int64_t skipped = 0) {
  const size_t bytes = whole.data.size() / static_cast<size_t>(whole.shape.front());
  const auto skip = static_cast<size_t>(skipped * tensor_type_info(whole.type).block_bytes);
  return whole.data.subspan(static_cast<size_t>(expert) * bytes + skip, bytes - skip);
}

// Splits a projection of all experts of a layer, as split_gpt_oss_experts() says. projections: those whose outputs take
// turns in `fused`.
void split_gpt_oss(const ModelConfig& config, int64_t layer, const std::vector<std::string>& projections,
                   const std::string& fused, int64_t outputs, int64_t inputs, TensorMap& tensors) {
  const int64_t experts = config.n_experts, step = std::ssize(projections), rows = outputs / step;
  const std::string prefix = layer_name(layer) + "mlp.experts." + fused;
  const auto floats = take(tensors, prefix + ".weight", {experts, inputs, outputs}),
             bias = take(tensors, prefix + "_bias", {experts, outputs}),
             blocks = take(tensors, prefix + "_blocks", {experts, outputs, inputs / kRowGroup, kRowGroup / 2}),
             exponents = take(tensors, prefix + "_scales", {experts, outputs, inputs / kRowGroup});
  for (int64_t part = 0; part < experts * step; ++part) {
    const int64_t expert = part / step, first = part % step;
    const std::string name = expert_prefix(layer, expert) + projections[static_cast<size_t>(first)];
    const auto add = [&](const std::string& suffix, TensorView view) {
      view.name = name + suffix;
      tensors[view.name] = std::move(view);
    };
    if (floats) {
      add(".weight", {.type = floats->type,
                      .shape = {rows, inputs},
                      .data = bytes_of_expert(*floats, expert, first),
                      .row_step = step,
                      .column_step = outputs});
    }
    if (bias) {
      add(".bias",
          {.type = bias->type, .shape = {rows}, .data = bytes_of_expert(*bias, expert, first), .column_step = step});
    }
    if (!blocks || !exponents) continue;
    auto integers = std::make_shared<PackedIntegers>();
    integers->layout = PackedIntegers::Layout::kMxfp4;
    integers->inputs = inputs;
    integers->outputs = outputs;
    integers->q = bytes_of_expert(*blocks, expert);
    integers->zeros = bytes_of_expert(*exponents, expert);
    integers->in_groups = true;
    integers->first_row = first;
    integers->row_step = step;
    add(".weight",
        {.type = TensorType::kMxfp4, .shape = {rows, inputs}, .data = integers->q, .integers = std::move(integers)});
  }
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
      for (const std::string suffix : {".weight", ".scale", ".bias"}) {
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
        for (const auto& [name, n] : parts) {
          if (suffix == ".bias" && tensors.contains(name)) tensors[name].shape = {width};
        }
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

void split_gpt_oss_experts(const ModelConfig& config, TensorMap& tensors) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    split_gpt_oss(config, layer, {"gate_proj", "up_proj"}, "gate_up_proj", 2 * config.expert_size, config.hidden_size,
                  tensors);
    split_gpt_oss(config, layer, {"down_proj"}, "down_proj", config.hidden_size, config.expert_size, tensors);
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
