// LLaMA and its relatives in plain LibTorch operations: differentiable, in any dtype, without a cache. It is the oracle
// of the kernels' tests, and the model that the training commands differentiate or observe. Serving uses
// engine/model/llama.h.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <map>
#include <string>

#include "engine/weights/weights.h"

namespace smartkv {

// The inputs of one layer's attention, each [batch, heads, length, head_dim].
struct AttentionInputs {
  torch::Tensor q, k, v;  // q and k after RoPE
  torch::Tensor k_before_rope;
  int64_t window = 0;   // tokens that a query sees, its own included; 0 for all
  double soft_cap = 0;  // of the scores; 0 for none
  torch::Tensor sinks;  // scores of a further entry without a value, [heads]; undefined for none
};

// Returns what an MLP makes of gate and up.
torch::Tensor activated(Activation activation, const torch::Tensor& gate, const torch::Tensor& up);

// Returns the fastest dtype for products on this CPU with at least the precision of bf16. It is bf16 with AVX-512 and
// f32 otherwise, because LibTorch's emulation of bf16 is many times slower.
torch::Dtype cpu_product_dtype();

// A model in LibTorch operations. It is immutable after construction.
class TorchLlama {
 public:
  // Computes a layer's attention: [batch, n_heads, length, head_dim].
  using Attention = std::function<torch::Tensor(int64_t layer, const AttentionInputs& inputs)>;

  // Reads all tensors of `weights` in `dtype`.
  TorchLlama(const Weights& weights, torch::Dtype dtype);
  // Uses the caller's tensors, all of one dtype, under Hugging Face names.
  TorchLlama(const ModelConfig& config, std::map<std::string, torch::Tensor> tensors);

  // Returns causal logits, [batch, length, vocab_size]. `tokens` is int64 [batch, length].
  torch::Tensor forward(const torch::Tensor& tokens) const;
  // Returns the output of the last layer, [batch, length, hidden_size], using the caller's attention.
  torch::Tensor hidden(const torch::Tensor& tokens, const Attention& attention) const;
  // Returns the logits of the result of hidden(), or of some rows of it.
  torch::Tensor head(const torch::Tensor& x) const;

  const ModelConfig& config() const { return config_; }
  // Returns a tensor by its Hugging Face name.
  const torch::Tensor& tensor(const std::string& name) const { return tensors_.at(name); }

 private:
  AttentionInputs attention_inputs(const torch::Tensor& x, int64_t layer, const torch::Tensor& angles) const;
  torch::Tensor linear(const torch::Tensor& x, const std::string& name) const;
  torch::Tensor norm(const torch::Tensor& x, const std::string& name) const;
  torch::Tensor mlp(const torch::Tensor& x, int64_t layer) const;

  ModelConfig config_;
  torch::Dtype dtype_;
  std::map<std::string, torch::Tensor> tensors_;  // Hugging Face names
};

// Returns the attention probabilities of queries [first, end) over the tokens before `end`, under the causal mask:
// f32 [..., end - first, end]. `q` is f32 [..., length, head_dim], already scaled; `k` is f32 [length, head_dim].
torch::Tensor causal_probabilities(const torch::Tensor& q, const torch::Tensor& k, int64_t first, int64_t end);

// Returns softmax(q k^T / sqrt(head_dim)) v under the causal mask, with window and soft cap. Memory grows with the
// square of the length.
torch::Tensor causal_attention(const AttentionInputs& inputs);

}  // namespace smartkv
