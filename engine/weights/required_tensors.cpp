#include "engine/weights/required_tensors.h"

#include <algorithm>
#include <set>

#include "engine/weights/projections.h"

namespace smartkv {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return s + "]";
}

}  // namespace

void check_shape(const std::string& name, const std::optional<TensorView>& tensor, std::span<const int64_t> shape,
                 const std::string& file) {
  const std::string where =
      (file.empty() ? "" : file + ": ") + "tensor \"" + name + "\": expected shape " + shape_text(shape) + ", found ";
  if (!tensor) throw ModelError(where + "no such tensor");
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    throw ModelError(where + shape_text(tensor->shape));
  }
}

void check_required_tensors(const Weights& weights, const std::string& file) {
  const ModelConfig& c = weights.config();
  std::set<std::string, std::less<>> known;
  const auto require = [&](const std::string& name, std::initializer_list<int64_t> shape) {
    check_shape(name, weights.find(name), std::span(shape.begin(), shape.size()), file);
    known.insert(name);
  };
  const auto allow = [&](const std::string& name, std::initializer_list<int64_t> shape) {
    if (weights.find(name)) require(name, shape);
  };
  const int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    require(name + ".weight", {out, in});
    if (bias) require(name + ".bias", {out});
  };
  require("model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const NormNames norms = norm_names(c.norm_placement);
    for (const std::string& norm : {norms.attention_input, norms.attention_output, norms.mlp_input, norms.mlp_output}) {
      if (!norm.empty()) require(layer + norm + ".weight", {c.hidden_size});
    }
    linear(layer + "self_attn.q_proj", q, c.hidden_size, c.attention_bias);
    linear(layer + "self_attn.k_proj", kv, c.hidden_size, c.attention_bias);
    linear(layer + "self_attn.v_proj", kv, c.hidden_size, c.attention_bias);
    linear(layer + "self_attn.o_proj", c.hidden_size, q, false);
    if (c.attention_bias) allow(layer + "self_attn.o_proj.bias", {c.hidden_size});
    if (c.attention_sinks) require(layer + "self_attn.sinks", {c.n_heads});
    if (c.qk_norm != QkNorm::kNone) {
      const bool head = c.qk_norm == QkNorm::kHead;
      require(layer + "self_attn.q_norm.weight", {head ? c.head_dim : q});
      require(layer + "self_attn.k_norm.weight", {head ? c.head_dim : kv});
    }
    if (c.has_experts(i)) {
      linear(layer + "mlp.gate", c.n_experts, c.hidden_size, c.router_bias);
      if (c.shared_expert_size > 0) linear(layer + "mlp.shared_expert_gate", 1, c.hidden_size, false);
    }
    for (const auto& [mlp, size] : mlps_of(c, i)) {
      linear(mlp + "gate_proj", size, c.hidden_size, c.mlp_bias);
      linear(mlp + "up_proj", size, c.hidden_size, c.mlp_bias);
      linear(mlp + "down_proj", c.hidden_size, size, c.mlp_bias);
    }
  }
  require("model.norm.weight", {c.hidden_size});
  if (!c.tie_word_embeddings) require("lm_head.weight", {c.vocab_size, c.hidden_size});
  for (const std::string& name : weights.names()) {
    // Older files store the frequencies of RoPE, which follow from the configuration.
    if (known.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    throw ModelError(file + ": tensor \"" + name + "\": expected no such tensor in a model of architecture " +
                     c.architecture + " with this configuration");
  }
}

}  // namespace smartkv
