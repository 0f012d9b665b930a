// LLaMA in plain LibTorch operations: differentiable, any dtype, no cache. The oracle of the kernels' tests and the
// model that the training commands differentiate; serving runs engine/model/llama.h.
#pragma once

#include <map>
#include <string>

#include <torch/torch.h>

#include "engine/weights/weights.h"

namespace smartkv {

class TorchLlama {
 public:
  TorchLlama(const Weights& weights, torch::Dtype dtype);

  // Causal logits. tokens: int64 [batch, length]; returns [batch, length, vocab_size].
  torch::Tensor forward(const torch::Tensor& tokens) const;

 private:
  torch::Tensor attention(const torch::Tensor& x, const std::string& layer) const;  // x: [batch, length, hidden_size]
  torch::Tensor linear(const torch::Tensor& x, const std::string& name) const;
  torch::Tensor norm(const torch::Tensor& x, const std::string& name) const;

  ModelConfig config_;
  torch::Dtype dtype_;
  std::map<std::string, torch::Tensor> tensors_;  // Hugging Face names
};

}  // namespace smartkv
