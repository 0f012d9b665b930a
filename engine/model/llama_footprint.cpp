#include "engine/model/llama_footprint.h"

#include <algorithm>

#include "engine/model/llama_weights.h"
#include "engine/weights/padded_weights.h"
#include "engine/weights/projections.h"
#include "kernels/packed_size.h"

namespace smartkv {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t matrix_bytes(const Weights& weights, LlamaStorage storage, int64_t out_features, int64_t in_features,
                     const std::vector<std::string>& tensors) {
  const MatrixFormat format = llama_format(weights, storage, tensors);
  if (format.type == kernels::WeightType::kEncoded) {
    int64_t bytes = 0;
    for (const std::string& name : tensors) bytes += weights.find(name)->bytes();
    return bytes;
  }
  return kernels::packed_bytes(format.type, out_features, in_features, format.minimums);
}

std::string layer_name(int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

// Returns the bytes of the norms and biases of a layer.
int64_t layer_float_bytes(const Weights& weights, const ModelConfig& c, int64_t layer) {
  const int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  int64_t floats = (c.norm_placement == NormPlacement::kBoth ? 4 : 2) * c.hidden_size;
  if (c.qk_norm == QkNorm::kHead) floats += 2 * c.head_dim;
  if (c.qk_norm == QkNorm::kProjection) floats += q + kv;
  if (c.attention_bias) floats += q + 2 * kv;
  if (c.attention_sinks) floats += c.n_heads;
  if (c.attention_bias && weights.find(layer_name(layer) + "self_attn.o_proj.bias")) floats += c.hidden_size;
  for (const MlpTensors& mlp : c.mlp_bias ? mlps_of(c, layer) : std::vector<MlpTensors>()) {
    floats += 2 * mlp.size + c.hidden_size;
  }
  if (c.has_experts(layer) && c.router_bias) floats += c.n_experts;
  return floats * kFloat;
}

int64_t layer_bytes(const Weights& weights, const ModelConfig& c, LlamaStorage storage, int64_t layer) {
  const int64_t q = c.n_heads * c.head_dim, hidden = c.hidden_size;
  const std::string attention = layer_name(layer) + "self_attn.", mlp = layer_name(layer) + "mlp.";
  int64_t matrices = matrix_bytes(weights, storage, hidden, q, {attention + "o_proj.weight"});
  for (const auto& parts : {stack_gate_up(weights, storage, layer), stack_down(weights, storage, layer)}) {
    for (const StackedMlps& part : parts) {
      matrices += matrix_bytes(weights, storage, part.rows(), part.columns, part.tensors);
    }
  }
  if (c.has_experts(layer)) {
    const LlamaStorage router = llama_router_storage(storage);
    matrices += matrix_bytes(weights, router, c.n_experts, hidden, {mlp + "gate.weight"});
    if (c.shared_expert_size > 0)
      matrices += matrix_bytes(weights, router, 1, hidden, {mlp + "shared_expert_gate.weight"});
  }
  for (const Stacked& part : stack_qkv(weights, storage, attention)) {
    matrices += matrix_bytes(weights, storage, part.all_rows, hidden, part.tensors);
  }
  return matrices + layer_float_bytes(weights, c, layer);
}

int64_t element_bytes(const ModelConfig& c, const ModelOptions& options) {
  return llama_cache_shape(c, options).type == kernels::KvType::kBf16 ? 2 : kFloat;
}

// The torch backend stores the matrices in the type of its products, except for the head, which is f32.
int64_t torch_weight_bytes(const Weights& weights, const ModelConfig& c, const ModelOptions& options) {
  const int64_t element = element_bytes(c, options), hidden = c.hidden_size, embedding = c.vocab_size * hidden;
  int64_t of_layers = c.n_layers * hidden * 2 * (c.n_heads + c.n_kv_heads) * c.head_dim;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    for (const MlpTensors& mlp : mlps_of(c, layer)) of_layers += 3 * hidden * mlp.size;
    if (c.has_experts(layer)) of_layers += hidden * (c.n_experts + (c.shared_expert_size > 0 ? 1 : 0));
  }
  const auto outputs = static_cast<int64_t>(weights.output_tokens().size());
  int64_t head = c.tie_word_embeddings || outputs == 0 ? embedding : outputs * hidden;
  if (c.tie_word_embeddings && element == kFloat) head = 0;  // The embedding serves as head.
  int64_t bytes = (of_layers + embedding) * element + (head + hidden) * kFloat;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) bytes += layer_float_bytes(weights, c, layer);
  return bytes;
}

}  // namespace

int64_t llama_weight_bytes(const Weights& of_file, const ModelOptions& options) {
  const std::unique_ptr<Weights> padded = pad_weights(of_file);
  const Weights& weights = padded == nullptr ? of_file : *padded;
  const ModelConfig& c = weights.config();
  if (options.backend == Backend::kTorch) return torch_weight_bytes(weights, c, options);
  const LlamaStorage storage = llama_storage(options, weights), head = llama_head_storage(storage);
  int64_t bytes = c.hidden_size * kFloat;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) bytes += layer_bytes(weights, c, storage, layer);
  const auto outputs = static_cast<int64_t>(weights.output_tokens().size());
  bytes += matrix_bytes(weights, head, c.vocab_size, c.hidden_size, {"model.embed_tokens.weight"});
  if (!c.tie_word_embeddings) {
    bytes += matrix_bytes(weights, head, outputs == 0 ? c.vocab_size : outputs, c.hidden_size, {"lm_head.weight"});
  }
  return bytes;
}

int64_t llama_pass_bytes(const ModelConfig& config, const ModelOptions& options, int64_t tokens) {
  const ModelConfig c = padded_config(config);
  const int64_t element = element_bytes(c, options);
  const int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  const int64_t floats = 2 * c.hidden_size + q + 2 * kv + c.head_dim;  // residual, branch, projections, angles
  // Each token goes to the gates and leaves the outputs of its experts. The torch backend takes one expert at a time.
  const int64_t experts = c.n_experts > 0 && options.backend == Backend::kNative ? c.experts_per_token : 0;
  const int64_t shared = c.shared_expert_size > 0 && experts > 0 ? 1 : 0;
  const int64_t expert_floats = (experts + shared) * c.hidden_size + c.n_experts;
  const int64_t gated = std::max(c.intermediate_size, experts * c.expert_size + c.shared_expert_size);
  return tokens * ((floats + expert_floats) * kFloat + (c.hidden_size + q + gated) * element);
}

}  // namespace smartkv
