// The shape of a LLaMA or of one of its relatives (architecture.h), as config.json or GGUF metadata give it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smartkv {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

struct RopeConfig {
  double theta = 10000.0;
  int64_t rotary_dim = 0;  // of each head, the elements that are rotated; 0: all
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_context = 0;  // original_max_position_embeddings; the readers fill in the model's own context
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool truncate = true;                                  // yarn: its ramp begins and ends at whole dimensions
  double magnitude = 1.0;                                // of cosines and sines: the attention factor of yarn and longrope
  std::vector<float> freq_factors;  // each frequency is divided by its factor (GGUF's rope_freqs.weight); empty: none
  // longrope: the same, for contexts up to the original one and for longer ones.
  std::vector<float> short_factors, long_factors;
};

// RMSNorm of queries and keys before RoPE: none, of each head, or of the whole projection.
enum class QkNorm : uint8_t { kNone, kHead, kProjection };
// Where a layer's norms stand: on the input of attention and MLP, or on their output before it is added.
enum class NormPlacement : uint8_t { kInput, kOutput };

struct ModelConfig {
  std::string name;  // "SmolLM2-135M-Instruct", else the file's stem
  std::string architecture = "llama";
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t sliding_window = 0;  // tokens that a query sees, itself included, in layers with a window; 0: there are none
  std::vector<bool> window_layers;  // true: the layer has the window; empty: all have, if there is one
  double rms_norm_eps = 1e-5;
  RopeConfig rope;
  std::vector<bool> rope_layers;  // false: the layer has no RoPE; empty: all have
  QkNorm qk_norm = QkNorm::kNone;
  double qk_norm_eps = 0.0;  // 0: rms_norm_eps
  NormPlacement norm_placement = NormPlacement::kInput;
  double embedding_multiplier = 1.0;
  double attention_multiplier = 0.0;  // of the products of queries and keys; 0: 1 / sqrt(head_dim)
  double residual_multiplier = 1.0;   // of what attention and MLP add
  double logits_divisor = 1.0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::vector<int32_t> eos_token_ids;  // of config.json / generation_config.json; may be empty

  int64_t window(int64_t layer) const {  // 0: none
    return window_layers.empty() || window_layers[static_cast<size_t>(layer)] ? sliding_window : 0;
  }
  bool has_rope(int64_t layer) const { return rope_layers.empty() || rope_layers[static_cast<size_t>(layer)]; }
};

}  // namespace smartkv
