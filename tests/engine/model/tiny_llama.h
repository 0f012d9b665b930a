// Random LLaMA models of a few thousand weights, in memory, so that unit tests take milliseconds.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/weights/projections.h"
#include "engine/weights/weights.h"

namespace smartkv {

inline ModelConfig tiny_config() {
  ModelConfig config;
  config.name = "tiny";
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.n_layers = 3;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 32;
  config.vocab_size = 259;
  config.context_length = 512;
  config.tie_word_embeddings = true;
  return config;
}

// Experts of which a token has two of five, and one that all tokens have.
inline ModelConfig tiny_experts() {
  ModelConfig config = tiny_config();
  config.n_experts = 5;
  config.experts_per_token = 2;
  config.expert_size = 32;
  config.shared_expert_size = 64;
  config.expert_layers = {true, false, true};
  return config;
}

// Normal random weights, the same for the same configuration and seed.
class TinyWeights final : public Weights {
 public:
  explicit TinyWeights(ModelConfig config, uint64_t seed = 1) : config_(std::move(config)), random_(seed) {
    const ModelConfig& c = config_;
    const int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
    add("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}, 1.0f);
    for (int64_t i = 0; i < c.n_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      const NormNames norms = norm_names(c.norm_placement);
      for (const std::string& norm :
           {norms.attention_input, norms.attention_output, norms.mlp_input, norms.mlp_output}) {
        if (!norm.empty()) add(layer + norm + ".weight", {c.hidden_size}, 0.2f, 1.0f);
      }
      if (c.qk_norm != QkNorm::kNone) {
        add(layer + "self_attn.q_norm.weight", {c.qk_norm == QkNorm::kHead ? c.head_dim : q}, 0.2f, 1.0f);
        add(layer + "self_attn.k_norm.weight", {c.qk_norm == QkNorm::kHead ? c.head_dim : kv}, 0.2f, 1.0f);
      }
      if (c.attention_sinks) add(layer + "self_attn.sinks", {c.n_heads}, 1.0f);
      add_linear(layer + "self_attn.q_proj", q, c.hidden_size, c.attention_bias);
      add_linear(layer + "self_attn.k_proj", kv, c.hidden_size, c.attention_bias);
      add_linear(layer + "self_attn.v_proj", kv, c.hidden_size, c.attention_bias);
      add_linear(layer + "self_attn.o_proj", c.hidden_size, q, c.attention_bias);
      if (c.has_experts(i)) add_linear(layer + "mlp.gate", c.n_experts, c.hidden_size, c.router_bias);
      if (c.has_experts(i) && c.shared_expert_size > 0) {
        add_linear(layer + "mlp.shared_expert_gate", 1, c.hidden_size, false);
      }
      for (const auto& [mlp, size] : mlps_of(c, i)) {
        add_linear(mlp + "gate_proj", size, c.hidden_size, c.mlp_bias);
        add_linear(mlp + "up_proj", size, c.hidden_size, c.mlp_bias);
        add_linear(mlp + "down_proj", c.hidden_size, size, c.mlp_bias);
      }
    }
    add("model.norm.weight", {c.hidden_size}, 0.2f, 1.0f);
    if (!c.tie_word_embeddings) add("lm_head.weight", {c.vocab_size, c.hidden_size}, 0.2f);
  }

  const ModelConfig& config() const override { return config_; }
  std::string format() const override { return "random"; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::optional<TensorView> find(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    if (found == tensors_.end()) return std::nullopt;
    TensorView view;
    view.name = found->first;
    view.shape = found->second.shape;
    view.data = std::as_bytes(std::span(found->second.values));
    return view;
  }
  int64_t file_row(std::string_view, int64_t row) const override { return row; }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  void add_linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    add(name + ".weight", {out, in}, 0.3f);
    if (bias) add(name + ".bias", {out}, 0.3f);
  }
  void add(const std::string& name, std::vector<int64_t> shape, float deviation, float mean = 0.0f) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    std::normal_distribution<float> normal(mean, deviation);
    Tensor& tensor = tensors_[name];
    tensor.shape = std::move(shape);
    tensor.values.resize(static_cast<size_t>(size));
    for (float& value : tensor.values) value = normal(random_);
  }

  ModelConfig config_;
  std::mt19937_64 random_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace smartkv
