// The configuration of a LLaMA or one of its relatives (architecture.h), read from config.json or GGUF metadata.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smartkv {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RopeConfig {
  double theta = 10000.0;
  int64_t rotary_dim = 0;  // Elements of each head that are rotated; 0 for all.
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  // original_max_position_embeddings, in tokens. If the file does not have it, readers set the model's context length.
  int64_t original_context = 0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool truncate = true;                                  // yarn: the ramp begins and ends at whole dimensions
  // Factor of cosines and sines: yarn's and longrope's attention factor.
  double magnitude = 1.0;
  // Divisors of the frequencies, [rotary_dim / 2] (GGUF's rope_freqs.weight). Empty if there are none.
  std::vector<float> freq_factors;
  // longrope: further divisors, for contexts up to original_context and for longer contexts.
  std::vector<float> short_factors, long_factors;
};

// The qk-norm, an RMSNorm of queries and keys before RoPE: none, over each head, or over the whole projection.
enum class QkNorm : uint8_t { kNone, kHead, kProjection };
// Where the norms of a layer apply: to the input of attention and MLP, to their output before it is added, or to both.
enum class NormPlacement : uint8_t { kInput, kOutput, kBoth };
// The Hugging Face names of a layer's norms, without the layer and ".weight"; empty if the layer has no such norm.
struct NormNames {
  std::string attention_input, attention_output, mlp_input, mlp_output;
};
NormNames norm_names(NormPlacement placement);

// What the MLP makes of gate and up: silu(gate) up, the same with the tanh approximation of gelu, or
// kernels::Epilogue::kClampedSwiGlu.
enum class Activation : uint8_t { kSilu, kGelu, kClampedSilu };

struct ModelConfig {
  std::string name;  // The model's own name, the first of model_names(): "SmolLM2-135M-Instruct".
  std::string architecture = "llama";
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;  // tokens
  // Tokens that a query sees in layers with a window, its own included. 0 if no layer has a window.
  int64_t sliding_window = 0;
  std::vector<bool> window_layers;  // [n_layers]: the layer has the window. Empty if all layers have it.
  double rms_norm_eps = 1e-5;
  RopeConfig rope;
  // RoPE base of the layers with a window, which are not scaled. 0 if all layers have the same RoPE.
  double window_rope_theta = 0.0;
  std::vector<bool> rope_layers;  // [n_layers]: the layer has RoPE. Empty if all layers have it.
  QkNorm qk_norm = QkNorm::kNone;
  double qk_norm_eps = 0.0;  // 0 for rms_norm_eps.
  NormPlacement norm_placement = NormPlacement::kInput;
  Activation activation = Activation::kSilu;
  double embedding_multiplier = 1.0;
  double attention_multiplier = 0.0;  // Factor of the products of queries and keys; 0 for 1 / sqrt(head_dim).
  double residual_multiplier = 1.0;   // Factor of the outputs of attention and MLP.
  double logits_divisor = 1.0;
  // Products of queries and keys, after their factor, and logits become cap tanh(x / cap). 0 for none.
  double attention_soft_cap = 0.0, logit_soft_cap = 0.0;
  bool attention_sinks = false;  // every query head has a sink (kernels::AttentionShape::sinks)
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  // In layers with experts a router chooses experts_per_token of n_experts MLPs for each token. Their outputs are added
  // with the router's softmax as weights. n_experts is 0 if all layers are dense.
  int64_t n_experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_size = 0;  // As intermediate_size, which is that of dense MLPs.
  // Size of a further MLP that takes all tokens, times the sigmoid of a gate. 0 if there is none.
  int64_t shared_expert_size = 0;
  bool router_bias = false;
  bool normalized_experts = false;  // The weights of the chosen experts are divided by their sum.
  std::vector<bool> expert_layers;  // [n_layers]: the layer has experts. Empty if all layers have them.
  // End tokens that config.json and generation_config.json, or the GGUF metadata, name. May be empty.
  std::vector<int32_t> eos_token_ids;

  bool has_window(int64_t layer) const {
    return sliding_window > 0 && (window_layers.empty() || window_layers[static_cast<size_t>(layer)]);
  }
  // Returns the sliding window of a layer in tokens; 0 if it hides nothing.
  int64_t window(int64_t layer) const {
    return has_window(layer) && sliding_window < context_length ? sliding_window : 0;
  }
  int64_t n_window_layers() const;
  int64_t n_full_layers() const { return n_layers - n_window_layers(); }
  // Returns the layers in the order in which caches number them: first those with full attention, then those with a
  // window, [n_layers].
  std::vector<int64_t> cache_order() const;
  // Returns the RoPE of the layers with a window.
  RopeConfig window_rope() const;
  bool has_experts(int64_t layer) const {
    return n_experts > 0 && (expert_layers.empty() || expert_layers[static_cast<size_t>(layer)]);
  }
  // Returns the number of MLP weights of a layer that a token is multiplied by, the router included.
  int64_t mlp_weights_per_token(int64_t layer) const;
  bool has_rope(int64_t layer) const { return rope_layers.empty() || rope_layers[static_cast<size_t>(layer)]; }
};

}  // namespace smartkv
