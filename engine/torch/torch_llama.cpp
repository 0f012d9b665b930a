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

torch::Tensor TorchLlama::linear(const torch::Tensor& x, const std::string& name) const {
  const auto bias = tensors_.find(name + ".bias");
  return torch::linear(x, tensors_.at(name + ".weight"), bias == tensors_.end() ? torch::Tensor() : bias->second);
}

torch::Tensor TorchLlama::norm(const torch::Tensor& x, const std::string& name) const {
  return x * torch::rsqrt(x.pow(2).mean(-1, true) + config_.rms_norm_eps) * tensors_.at(name + ".weight");
}

torch::Tensor TorchLlama::attention(const torch::Tensor& x, const std::string& layer) const {
  const int64_t batch = x.size(0), length = x.size(1), dim = config_.head_dim;
  const auto heads = [&](const std::string& name, int64_t n) {
    return linear(x, layer + name).view({batch, length, n, dim}).transpose(1, 2);  // [batch, n, length, dim]
  };
  const Rope rope(config_.rope, dim, config_.context_length);
  torch::Tensor angles = torch::empty({length, 2, dim / 2}, torch::kFloat32);
  for (int64_t i = 0; i < length; ++i) {
    float* row = angles.data_ptr<float>() + i * dim;
    rope.angles(i, row, row + dim / 2);
  }
  angles = angles.to(dtype_);
  const torch::Tensor cos = angles.select(1, 0), sin = angles.select(1, 1);
  const auto rotate = [&](const torch::Tensor& t) {
    const std::vector<torch::Tensor> halves = t.chunk(2, -1);
    return torch::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  };
  const int64_t group = config_.n_heads / config_.n_kv_heads;
  const torch::Tensor q = rotate(heads("self_attn.q_proj", config_.n_heads));
  const torch::Tensor k = rotate(heads("self_attn.k_proj", config_.n_kv_heads)).repeat_interleave(group, 1);
  const torch::Tensor v = heads("self_attn.v_proj", config_.n_kv_heads).repeat_interleave(group, 1);
  const torch::Tensor future = torch::ones({length, length}, torch::kBool).triu(1);
  const torch::Tensor scores = (torch::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(dim)))
                                   .masked_fill(future, -std::numeric_limits<double>::infinity());
  const torch::Tensor mixed = torch::matmul(torch::softmax(scores, -1), v);
  return linear(mixed.transpose(1, 2).reshape({batch, length, config_.n_heads * dim}), layer + "self_attn.o_proj");
}

torch::Tensor TorchLlama::forward(const torch::Tensor& tokens) const {
  torch::Tensor x = torch::embedding(tensors_.at("model.embed_tokens.weight"), tokens);
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    x = x + attention(norm(x, layer + "input_layernorm"), layer);
    const torch::Tensor h = norm(x, layer + "post_attention_layernorm");
    x = x + linear(torch::silu(linear(h, layer + "mlp.gate_proj")) * linear(h, layer + "mlp.up_proj"),
                   layer + "mlp.down_proj");
  }
  return linear(norm(x, "model.norm"), config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head");
}

}  // namespace smartkv
