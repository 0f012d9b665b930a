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
  // [(n_heads + 2 n_kv_heads) head_dim, hidden_size], cut between q, k and v where their formats differ
  std::vector<kernels::PackedMatrix> qkv;
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

// How matrices are stored.
struct LlamaStorage {
  kernels::WeightType type = kernels::WeightType::kBf16;  // what they are converted to. Integers keep those of a file that are no wider
  // The file's integers are kept whatever their width; what else it has quantised is fitted to 8 bits, and floats become `type`.
  bool as_file = false;
};

// Storage of the matrices under these options; llama_head_storage() makes that of head and embedding of it. Throws ModelError as
// check_llama_options().
LlamaStorage llama_storage(const LlamaOptions& options, const Weights& weights);
LlamaStorage llama_head_storage(LlamaStorage storage);

struct MatrixFormat {
  kernels::WeightType type = kernels::WeightType::kBf16;
  kernels::Minimums minimums = kernels::Minimums::kStored;
  bool operator==(const MatrixFormat&) const = default;
};
// Of a matrix of these tensors. `weights` as pack_llama() takes them.
MatrixFormat llama_format(const Weights& weights, LlamaStorage storage, std::span<const std::string> tensors);

// Projections that lie in one matrix, one below the other.
struct Stacked {
  std::vector<std::string> tensors;
  std::vector<int64_t> rows;  // of each
  int64_t all_rows = 0;
};
// A layer's q, k and v. attention: "model.layers.0.self_attn.".
std::vector<Stacked> stack_qkv(const Weights& weights, LlamaStorage storage, const std::string& attention);

// weights: as pad_weights gives them.
LlamaWeights pack_llama(const Weights& weights, LlamaStorage storage, ThreadPool& pool, const std::function<void(double)>& progress);

}  // namespace smartkv
