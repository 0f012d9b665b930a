// The packed weights of the native backend.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/llama.h"
#include "engine/weights/quantized_rows.h"
#include "kernels/linear.h"

namespace smartkv {

inline constexpr int64_t kLanes = 16;  // rows that are packed together

// Where the weights of an MLP lie: matrices of the layer's lists, and their first rows of the MLP.
struct MlpPlace {
  size_t gate_up = 0, down = 0;
  int64_t gate_up_row = 0, down_row = 0;
  int64_t size = 0;  // rows of gate and up, columns of down
};

struct LlamaLayerWeights {
  // [hidden_size]. Applied to the input and the output of attention and MLP; empty where there is none (norm_names()).
  std::vector<float> attention_norm, attention_output_norm, mlp_norm, mlp_output_norm;
  // q, k and v: [(n_heads + 2 n_kv_heads) head_dim, hidden_size] together. Neighbours with the same format share a
  // matrix.
  std::vector<kernels::PackedMatrix> qkv;
  kernels::PackedMatrix output;  // [hidden_size, n_heads head_dim]
  // Of a dense layer one MLP, else those of mlps_of(). MLPs with the same format share a matrix.
  std::vector<MlpPlace> mlps;
  // [2 intermediate_size, hidden_size] of each MLP: 16 rows of gate, 16 of up, ...
  std::vector<kernels::PackedMatrix> gate_up;
  std::vector<kernels::PackedMatrix> down;  // [hidden_size, intermediate_size] of each MLP
  kernels::PackedMatrix router;             // [n_experts, hidden_size]; empty in dense layers
  std::vector<float> router_bias;           // [n_experts] or empty
  kernels::PackedMatrix shared_gate;        // [1, hidden_size]; empty if there is no shared expert
  // gate_up_bias and down_bias: of all MLPs in order. Empty if the model has none.
  std::vector<float> qkv_bias, output_bias, gate_up_bias, down_bias;
};

// Returns all matrices of a layer. Some may be empty.
std::vector<const kernels::PackedMatrix*> matrices_of(const LlamaLayerWeights& layer);

struct LlamaWeights {
  std::vector<LlamaLayerWeights> layers;
  std::vector<float> final_norm;  // [hidden_size]
  kernels::PackedMatrix head;     // [n_outputs, hidden_size]. Also the embedding if they are tied.
  // The token of each row of `head`. Empty if the rows are all of vocab_size in order.
  std::vector<int32_t> output_tokens;
  kernels::PackedMatrix embedding;  // [vocab_size, hidden_size]. Empty if it is tied to `head`.

  const kernels::PackedMatrix& token_embedding() const { return embedding.bytes() > 0 ? embedding : head; }
  int64_t bytes() const;
  // Locks the matrices in memory (mlock). Throws ModelError that names the limit if the system refuses.
  void lock() const;
};

// How matrices are stored.
struct LlamaStorage {
  // The type that matrices are converted to. If it is an integer type, integers of a file that are no wider are kept.
  kernels::WeightType type = kernels::WeightType::kBf16;
  // Quantized tensors of a file are kept as they are, whatever their width; floats become `type`. Types without an
  // integer layout stay encoded.
  bool as_file = false;
};

// Returns the storage of the matrices of the layers under these options. Throws ModelError as check_model_options()
// does.
LlamaStorage llama_storage(const ModelOptions& options, const Weights& weights);
// Returns the storage of head and embedding in a model that stores its layers in `storage`.
LlamaStorage llama_head_storage(LlamaStorage storage);
// Returns that of routers and gates of experts. A router decides which weights a token meets, and is small, so that
// floats are not fitted to integers.
LlamaStorage llama_router_storage(LlamaStorage storage);

// Returns the format of a matrix that holds the rows of these tensors. `weights`: as for pack_llama().
MatrixFormat llama_format(const Weights& weights, LlamaStorage storage, std::span<const std::string> tensors);
// Returns whether the storage keeps the integers of the tensor in their own format.
bool keeps_integers(const TensorView& tensor, LlamaStorage storage);

// Projections that are stored in one matrix, one below the other.
struct Stacked {
  std::vector<std::string> tensors;  // Hugging Face names
  std::vector<int64_t> rows;         // The number of rows of each tensor.
  int64_t all_rows = 0;              // Their sum.
};
// Returns the matrices that hold q, k and v of a layer. attention: prefix of the tensors, "model.layers.0.self_attn.".
std::vector<Stacked> stack_qkv(const Weights& weights, LlamaStorage storage, const std::string& attention);

// MLPs whose gate and up, or down projections are stored in one matrix, one MLP below the other.
struct StackedMlps {
  size_t first = 0, n = 0;           // MLPs [first, first + n) of the layer.
  std::vector<std::string> tensors;  // Hugging Face names: gate and up, or down, of each MLP
  int64_t rows_each = 0;             // of an MLP
  int64_t columns = 0;
  // Each MLP begins with a lane group.
  int64_t rows_apart() const { return (rows_each + kLanes - 1) / kLanes * kLanes; }
  int64_t rows() const { return (static_cast<int64_t>(n) - 1) * rows_apart() + rows_each; }
};
// Returns the matrices that hold a projection of the MLPs of a layer.
std::vector<StackedMlps> stack_gate_up(const Weights& weights, LlamaStorage storage, int64_t layer);
std::vector<StackedMlps> stack_down(const Weights& weights, LlamaStorage storage, int64_t layer);

// Packs all weights of a model. weights: the result of pad_weights() if it is not null, else the weights themselves.
// progress: called with the packed fraction, 0 to 1; may be null. Throws ModelError.
LlamaWeights pack_llama(const Weights& weights, LlamaStorage storage, ThreadPool& pool,
                        const std::function<void(double)>& progress);

}  // namespace smartkv
