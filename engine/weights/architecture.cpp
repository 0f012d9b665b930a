#include "engine/weights/architecture.h"

namespace smartkv {
namespace {

constexpr Architecture kArchitectures[] = {
    {.name = "llama", .mlp_bias_key = true, .interleaved_in_gguf = true},
    {.name = "mistral",
     .attention_bias_key = false,
     .window = WindowRule::kAlways,
     .interleaved_in_gguf = true,
     .default_window = 4096,
     .default_context = 131072},
    {.name = "qwen2",
     .qkv_bias = true,
     .attention_bias_key = false,
     .window = WindowRule::kWhenUsed,
     .default_window = 4096,
     .default_context = 32768},
    {.name = "qwen3",
     .qk_norm = QkNorm::kHead,
     .window = WindowRule::kWhenUsed,
     .default_window = 4096,
     .default_head_dim = 128,
     .default_context = 32768},
    {.name = "smollm3",
     .mlp_bias_key = true,
     .rope_free_interval = 4,
     .window = WindowRule::kWhenUsed,
     .interleaved_in_gguf = true,
     .default_context = 32768,
     .default_rope_theta = 2e6,
     .default_tied = true},
    {.name = "granite", .mlp_bias_key = true, .multipliers = true, .interleaved_in_gguf = true},
    {.name = "olmo2",
     .qk_norm = QkNorm::kProjection,
     .norm_placement = NormPlacement::kOutput,
     .default_rms_norm_eps = 1e-5},
    {.name = "phi3",
     .attention_bias_key = false,
     .fused_projections = true,
     .partial_rotary = true,
     .window = WindowRule::kAlways,
     .default_context = 4096,
     .default_rms_norm_eps = 1e-5},
    {.name = "gemma2",
     .norm_placement = NormPlacement::kBoth,
     .norms_add_one = true,
     .scaled_embeddings = true,
     .activation = Activation::kGelu,
     .default_attention_soft_cap = 50.0,
     .default_logit_soft_cap = 30.0,
     .default_query_scalar = 256,
     .hidden_scalar_layers = 46,
     .window = WindowRule::kPattern,
     .default_window = 4096,
     .window_pattern = 2,
     .default_head_dim = 256,
     .default_context = 8192,
     .default_tied = true},
    {.name = "gemma3",
     .text_name = "gemma3_text",
     .qk_norm = QkNorm::kHead,
     .norm_placement = NormPlacement::kBoth,
     .norms_add_one = true,
     .scaled_embeddings = true,
     .activation = Activation::kGelu,
     .default_window_rope_theta = 10000.0,
     .default_query_scalar = 256,
     .hidden_scalar_layers = 62,
     .window = WindowRule::kPattern,
     .default_window = 4096,
     .window_pattern = 6,
     .default_heads = 8,
     .default_kv_heads = 4,
     .default_vocab = 262208,
     .default_head_dim = 256,
     .default_context = 131072,
     .default_rope_theta = 1e6,
     .default_tied = true},
    {.name = "seed_oss", .mlp_bias_key = true, .default_head_dim = 128, .default_context = 524288},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name || (!name.empty() && architecture.text_name == name)) return &architecture;
  }
  return nullptr;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

}  // namespace smartkv
