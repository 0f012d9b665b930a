// LLaMA and its relatives in plain LibTorch operations: differentiable, any dtype, no cache. The oracle of the kernels'
// tests and the model that the training commands differentiate or watch; serving runs engine/model/llama.h.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>

#include "engine/weights/weights.h"

namespace smartkv {

// What one layer's attention works on: [batch, heads, length, head_dim].
struct AttentionInputs {
  torch::Tensor q, k, v;  // q and k after RoPE
  torch::Tensor k_before_rope;
};

// The fastest type of products on this CPU that keeps bf16's precision: bf16 where there is AVX-512, else f32, for LibTorch's
// emulation is many times slower.
torch::Dtype cpu_product_dtype();

class TorchLlama {
 public:
  // Computes a layer's attention: [batch, n_heads, length, head_dim].
  using Attention = std::function<torch::Tensor(int64_t layer, const AttentionInputs& inputs)>;

  TorchLlama(const Weights& weights, torch::Dtype dtype);
  // Of the caller's tensors, all of one dtype, under Hugging Face names.
  TorchLlama(const ModelConfig& config, std::map<std::string, torch::Tensor> tensors);

  // Causal logits. tokens: int64 [batch, length]; returns [batch, length, vocab_size].
  torch::Tensor forward(const torch::Tensor& tokens) const;
  // The same up to the last layer's output, with attention of the caller's: [batch, length, hidden_size].
  torch::Tensor hidden(const torch::Tensor& tokens, const Attention& attention) const;
  // Logits of what hidden() returns, or of some of its rows.
  torch::Tensor head(const torch::Tensor& x) const;

  const ModelConfig& config() const { return config_; }
  const torch::Tensor& tensor(const std::string& name) const { return tensors_.at(name); }  // by its Hugging Face name

 private:
  AttentionInputs attention_inputs(const torch::Tensor& x, int64_t layer, const torch::Tensor& angles) const;
  torch::Tensor linear(const torch::Tensor& x, const std::string& name) const;
  torch::Tensor norm(const torch::Tensor& x, const std::string& name) const;

  ModelConfig config_;
  torch::Dtype dtype_;
  std::map<std::string, torch::Tensor> tensors_;  // Hugging Face names
};

// Probabilities of queries [first, end) over the tokens before `end`, under the causal mask: f32 [..., end - first, end].
// q: f32 [..., length, head_dim], scaled; k: f32 [length, head_dim].
torch::Tensor causal_probabilities(const torch::Tensor& q, const torch::Tensor& k, int64_t first, int64_t end);

// softmax(q k^T / sqrt(head_dim)) v under the causal mask, all at once: memory grows with the square of the length.
torch::Tensor causal_attention(const AttentionInputs& inputs);

}  // namespace smartkv
