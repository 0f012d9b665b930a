#include "engine/torch/torch_llama.h"

#include <cmath>
#include <limits>
#include <vector>

#include "engine/model/rope.h"

namespace smartkv {

TorchLlama::TorchLlama(const Weights& weights, torch::Dtype dtype) : config_(weights.config()), dtype_(dtype) {
  for (const std::string& name : weights.names()) {
    const auto view = weights.find(name);
    std::vector<float> values = weights.read(name, view->shape);
    tensors_[name] = torch::from_blob(values.data(), view->shape, torch::kFloat32).clone().to(dtype);
  }
}

TorchLlama::TorchLlama(const ModelConfig& config, std::map<std::string, torch::Tensor> tensors)
    : config_(config), dtype_(tensors.at("model.norm.weight").scalar_type()), tensors_(std::move(tensors)) {}

torch::Tensor TorchLlama::linear(const torch::Tensor& x, const std::string& name) const {
  const auto bias = tensors_.find(name + ".bias");
  return torch::linear(x, tensors_.at(name + ".weight"), bias == tensors_.end() ? torch::Tensor() : bias->second);
}

torch::Tensor TorchLlama::norm(const torch::Tensor& x, const std::string& name) const {
  return x * torch::rsqrt(x.pow(2).mean(-1, true) + config_.rms_norm_eps) * tensors_.at(name + ".weight");
}

AttentionInputs TorchLlama::attention_inputs(const torch::Tensor& x, const std::string& layer,
                                             const torch::Tensor& angles) const {
  const int64_t batch = x.size(0), length = x.size(1);
  const auto heads = [&](const std::string& name, int64_t n) {
    return linear(x, layer + name).view({batch, length, n, config_.head_dim}).transpose(1, 2);
  };
  const torch::Tensor cos = angles.select(1, 0), sin = angles.select(1, 1);
  const auto rotate = [&](const torch::Tensor& t) {
    const std::vector<torch::Tensor> halves = t.chunk(2, -1);
    return torch::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  };
  AttentionInputs inputs;
  inputs.q = rotate(heads("self_attn.q_proj", config_.n_heads));
  inputs.k_before_rope = heads("self_attn.k_proj", config_.n_kv_heads);
  inputs.k = rotate(inputs.k_before_rope);
  inputs.v = heads("self_attn.v_proj", config_.n_kv_heads);
  return inputs;
}

torch::Tensor causal_attention(const AttentionInputs& inputs) {
  const int64_t length = inputs.q.size(2), group = inputs.q.size(1) / inputs.k.size(1);
  const torch::Tensor k = inputs.k.repeat_interleave(group, 1), v = inputs.v.repeat_interleave(group, 1);
  const torch::Tensor future = torch::ones({length, length}, torch::kBool).triu(1);
  const torch::Tensor scores =
      (torch::matmul(inputs.q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(inputs.q.size(3))))
          .masked_fill(future, -std::numeric_limits<double>::infinity());
  return torch::matmul(torch::softmax(scores, -1), v);
}

torch::Tensor TorchLlama::hidden(const torch::Tensor& tokens, const Attention& attention) const {
  const int64_t batch = tokens.size(0), length = tokens.size(1), half = config_.head_dim / 2;
  const Rope rope(config_.rope, config_.head_dim, config_.context_length);
  torch::Tensor angles = torch::empty({length, 2, half}, torch::kFloat32);
  for (int64_t i = 0; i < length; ++i) {
    float* row = angles.data_ptr<float>() + i * 2 * half;
    rope.angles(i, row, row + half);
  }
  angles = angles.to(dtype_);
  torch::Tensor x = torch::embedding(tensors_.at("model.embed_tokens.weight"), tokens);
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const torch::Tensor mixed = attention(i, attention_inputs(norm(x, layer + "input_layernorm"), layer, angles));
    x = x + linear(mixed.transpose(1, 2).reshape({batch, length, config_.n_heads * config_.head_dim}),
                   layer + "self_attn.o_proj");
    const torch::Tensor h = norm(x, layer + "post_attention_layernorm");
    x = x + linear(torch::silu(linear(h, layer + "mlp.gate_proj")) * linear(h, layer + "mlp.up_proj"),
                   layer + "mlp.down_proj");
  }
  return x;
}

torch::Tensor TorchLlama::head(const torch::Tensor& x) const {
  return linear(norm(x, "model.norm"), config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
}

torch::Tensor TorchLlama::forward(const torch::Tensor& tokens) const {
  const torch::Tensor x =
      hidden(tokens, [](int64_t, const AttentionInputs& inputs) { return causal_attention(inputs); });
  return head(x);
}

}  // namespace smartkv
