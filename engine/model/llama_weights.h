// The packed weights of the native backend.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/llama.h"
#include "kernels/linear.h"

namespace smartkv {

struct LlamaLayerWeights {
  std::vector<float> attention_norm, mlp_norm;               // [hidden_size], of the input or the output
  kernels::PackedMatrix qkv;                                 // [(n_heads + 2 n_kv_heads) head_dim, hidden_size]
  kernels::PackedMatrix output;                              // [hidden_size, n_heads head_dim]
  kernels::PackedMatrix gate_up;                             // [2 intermediate_size, hidden_size], 16 rows in turn
  kernels::PackedMatrix down;                                // [hidden_size, intermediate_size]
  std::vector<float> qkv_bias, output_bias, gate_up_bias, down_bias;  // empty: none
};

struct LlamaWeights {
  std::vector<LlamaLayerWeights> layers;
  std::vector<float> final_norm;    // [hidden_size]
  kernels::PackedMatrix head;       // [n_outputs, hidden_size]; also the embedding when they are tied
  std::vector<int32_t> output_tokens;  // the token of each of the head's rows; empty: all of vocab_size in order
  kernels::PackedMatrix embedding;  // empty when tied

  const kernels::PackedMatrix& token_embedding() const { return embedding.bytes() > 0 ? embedding : head; }
  int64_t bytes() const;
};

// How the matrices are stored under these options, and then the head and the embedding. stored_as: of Weights. Throws
// ModelError.
kernels::WeightType llama_weight_type(const LlamaOptions& options, const std::string& stored_as);
kernels::WeightType llama_head_type(kernels::WeightType type);
// Whether a matrix of these tensors is stored with minimums. `weights` as pack_llama() takes them.
kernels::Minimums llama_minimums(const Weights& weights, kernels::WeightType type, std::span<const std::string> tensors);

// weights: as pad_weights gives them.
LlamaWeights pack_llama(const Weights& weights, kernels::WeightType type, ThreadPool& pool,
                        const std::function<void(double)>& progress);

}  // namespace smartkv
