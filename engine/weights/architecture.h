// The architectures that are served: LLaMA and the relatives that differ from it as one row of a table can say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/weights/model_config.h"

namespace smartkv {

// Whether "sliding_window" counts: it is no key of the architecture's, always, or when "use_sliding_window" is true.
enum class WindowRule : uint8_t { kNone, kAlways, kWhenUsed };

// Differences from LLaMA, and the defaults that Hugging Face transformers gives to keys that are absent.
struct Architecture {
  std::string_view name;  // config.json's "model_type" and GGUF's "general.architecture"

  bool qkv_bias = false;                 // q, k and v have biases whatever the keys say
  bool attention_bias_key = true;        // "attention_bias" counts
  bool mlp_bias_key = false;             // "mlp_bias" counts
  bool fused_projections = false;        // q, k and v are one tensor, gate and up another
  bool partial_rotary = false;           // "partial_rotary_factor" counts
  bool multipliers = false;              // Granite's four
  int64_t rope_free_interval = 0;        // every so many layers one has no RoPE, if no key says which; 0: all have
  QkNorm qk_norm = QkNorm::kNone;
  NormPlacement norm_placement = NormPlacement::kInput;
  WindowRule window = WindowRule::kNone;
  bool interleaved_in_gguf = false;      // GGUF holds q and k rows for RoPE on neighbouring elements

  int64_t default_window = 0;
  int64_t default_head_dim = 0;          // 0: hidden_size / num_attention_heads
  int64_t default_context = 2048;
  double default_rms_norm_eps = 1e-6;
  double default_rope_theta = 10000.0;
  bool default_tied = false;
};

// nullptr: not served.
const Architecture* find_architecture(std::string_view name);
std::string architecture_names();  // "llama, mistral, ..."

}  // namespace smartkv
