#include "engine/torch/torch_llama.h"

#include <cmath>
#include <limits>

#include "engine/model/rope.h"
#include "engine/weights/projections.h"
#include "kernels/cpu_level.h"
#include "kernels/linear.h"

namespace smartkv {
namespace {

std::string layer_name(int64_t index) { return "model.layers." + std::to_string(index) + "."; }

}  // namespace

torch::Dtype cpu_product_dtype() {
  return kernels::detected_cpu_level() < kernels::CpuLevel::kAvx512 ? torch::kFloat32 : torch::kBFloat16;
}

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

AttentionInputs TorchLlama::attention_inputs(const torch::Tensor& x, int64_t index, const torch::Tensor& angles) const {
  const std::string layer = layer_name(index);
  const int64_t batch = x.size(0), length = x.size(1);
  const auto heads = [&](const std::string& name, const std::string& norm_name, int64_t n) {
    torch::Tensor y = linear(x, layer + name);
    if (config_.qk_norm == QkNorm::kProjection && !norm_name.empty()) y = norm(y, layer + norm_name);
    y = y.view({batch, length, n, config_.head_dim});
    if (config_.qk_norm == QkNorm::kHead && !norm_name.empty()) y = norm(y, layer + norm_name);
    return y.transpose(1, 2);
  };
  const torch::Tensor cos = angles.select(1, 0), sin = angles.select(1, 1);
  const auto rotate = [&](const torch::Tensor& t) {
    const std::vector<torch::Tensor> halves = t.chunk(2, -1);
    return torch::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  };
  AttentionInputs inputs;
  inputs.window = config_.window(index);
  inputs.soft_cap = config_.attention_soft_cap;
  if (config_.attention_sinks) inputs.sinks = tensors_.at(layer + "self_attn.sinks");
  inputs.q = heads("self_attn.q_proj", "self_attn.q_norm", config_.n_heads);
  if (config_.attention_multiplier > 0) {  // undo the division by sqrt(head_dim) in attention
    inputs.q = inputs.q * (config_.attention_multiplier * std::sqrt(static_cast<double>(config_.head_dim)));
  }
  inputs.k = heads("self_attn.k_proj", "self_attn.k_norm", config_.n_kv_heads);
  inputs.v = heads("self_attn.v_proj", "", config_.n_kv_heads);
  if (config_.has_rope(index)) {
    inputs.k_before_rope = inputs.k;
    inputs.q = rotate(inputs.q);
    inputs.k = rotate(inputs.k);
  } else {
    // A cache undoes the rotation of every key, even in layers without RoPE. Do the same, so that gates are trained on
    // what they see when serving.
    const std::vector<torch::Tensor> halves = inputs.k.chunk(2, -1);
    const torch::Tensor square = cos * cos + sin * sin;
    inputs.k_before_rope = torch::cat({halves[0] * cos + halves[1] * sin, halves[1] * cos - halves[0] * sin}, -1) /
                           torch::cat({square, square}, -1);
  }
  return inputs;
}

torch::Tensor activated(Activation activation, const torch::Tensor& gate, const torch::Tensor& up) {
  switch (activation) {
    case Activation::kSilu: return torch::silu(gate) * up;
    case Activation::kGelu: return torch::gelu(gate, "tanh") * up;
    case Activation::kClampedSilu: break;
  }
  constexpr double kLimit = kernels::kClampedSwiGluLimit;
  const torch::Tensor g = gate.clamp_max(kLimit);
  return g * torch::sigmoid(g * kernels::kClampedSwiGluAlpha) * (up.clamp(-kLimit, kLimit) + 1);
}

torch::Tensor causal_probabilities(const torch::Tensor& q, const torch::Tensor& k, int64_t first, int64_t end) {
  const torch::Tensor future = torch::ones({end - first, end}, torch::kBool).triu(first + 1);
  return torch::matmul(q.slice(-2, first, end), k.slice(0, 0, end).t())
      .masked_fill_(future, -std::numeric_limits<float>::infinity())
      .softmax(-1);
}

torch::Tensor causal_attention(const AttentionInputs& inputs) {
  const int64_t length = inputs.q.size(2), group = inputs.q.size(1) / inputs.k.size(1);
  const torch::Tensor k = inputs.k.repeat_interleave(group, 1), v = inputs.v.repeat_interleave(group, 1);
  const torch::Tensor all = torch::ones({length, length}, torch::kBool);
  torch::Tensor hidden = all.triu(1);
  if (inputs.window > 0) hidden = hidden.logical_or(all.tril(-inputs.window));
  torch::Tensor scores =
      torch::matmul(inputs.q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(inputs.q.size(3)));
  if (inputs.soft_cap > 0) scores = inputs.soft_cap * torch::tanh(scores / inputs.soft_cap);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (inputs.sinks.defined()) {
    const torch::Tensor sinks = inputs.sinks.view({1, -1, 1, 1}).expand({scores.size(0), -1, length, 1});
    scores = torch::cat({scores, sinks}, -1);
  }
  return torch::matmul(torch::softmax(scores, -1).slice(-1, 0, length), v);
}

torch::Tensor TorchLlama::mlp(const torch::Tensor& x, int64_t index) const {
  const auto of = [&](const std::string& prefix) {
    const torch::Tensor gate = linear(x, prefix + "gate_proj");
    return linear(activated(config_.activation, gate, linear(x, prefix + "up_proj")), prefix + "down_proj");
  };
  const std::vector<MlpTensors> mlps = mlps_of(config_, index);
  if (!config_.has_experts(index)) return of(mlps.front().prefix);
  // Every expert computes every token. The weights of those that are not chosen are 0.
  const std::string prefix = layer_name(index) + "mlp.";
  const torch::Tensor probabilities = linear(x, prefix + "gate").softmax(-1);
  const auto [values, chosen] = probabilities.topk(config_.experts_per_token, -1);
  torch::Tensor weights = torch::zeros_like(probabilities).scatter(-1, chosen, values);
  if (config_.normalized_experts) weights = weights / weights.sum(-1, true);
  torch::Tensor sum = torch::zeros_like(x);
  for (int64_t i = 0; i < config_.n_experts; ++i) {
    sum = sum + weights.slice(-1, i, i + 1) * of(mlps[static_cast<size_t>(i)].prefix);
  }
  if (config_.shared_expert_size == 0) return sum;
  return sum + linear(x, prefix + "shared_expert_gate").sigmoid() * of(mlps.back().prefix);
}

torch::Tensor TorchLlama::hidden(const torch::Tensor& tokens, const Attention& attention) const {
  const int64_t batch = tokens.size(0), length = tokens.size(1), half = config_.head_dim / 2;
  const auto angles_of = [&](const RopeConfig& config) {
    const Rope rope(config, config_.head_dim, config_.context_length);
    torch::Tensor angles = torch::empty({length, 2, half}, torch::kFloat32);
    for (int64_t i = 0; i < length; ++i) {
      float* row = angles.data_ptr<float>() + i * 2 * half;
      rope.angles(i, row, row + half);
    }
    return angles.to(dtype_);
  };
  const torch::Tensor angles = angles_of(config_.rope), window_angles = angles_of(config_.window_rope());
  const NormNames norms = norm_names(config_.norm_placement);
  const auto normed = [&](const torch::Tensor& of, const std::string& layer, const std::string& name) {
    return name.empty() ? of : norm(of, layer + name);
  };
  torch::Tensor x = torch::embedding(tensors_.at("model.embed_tokens.weight"), tokens) * config_.embedding_multiplier;
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    const std::string layer = layer_name(i);
    const torch::Tensor mixed = attention(i, attention_inputs(normed(x, layer, norms.attention_input), i,
                                                              config_.has_window(i) ? window_angles : angles));
    const torch::Tensor attended = linear(
        mixed.transpose(1, 2).reshape({batch, length, config_.n_heads * config_.head_dim}), layer + "self_attn.o_proj");
    x = x + normed(attended, layer, norms.attention_output) * config_.residual_multiplier;
    const torch::Tensor h = normed(x, layer, norms.mlp_input);
    x = x + normed(mlp(h, i), layer, norms.mlp_output) * config_.residual_multiplier;
  }
  return x;
}

torch::Tensor TorchLlama::head(const torch::Tensor& x) const {
  const torch::Tensor logits =
      linear(norm(x, "model.norm"), config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head") /
      config_.logits_divisor;
  const double cap = config_.logit_soft_cap;
  return cap > 0 ? cap * torch::tanh(logits / cap) : logits;
}

torch::Tensor TorchLlama::forward(const torch::Tensor& tokens) const {
  const torch::Tensor x =
      hidden(tokens, [](int64_t, const AttentionInputs& inputs) { return causal_attention(inputs); });
  return head(x);
}

}  // namespace smartkv
