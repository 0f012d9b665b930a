#include "engine/weights/architecture.h"

#include <algorithm>

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
    {.name = "mixtral",
     .gguf_name = "llama",
     .attention_bias_key = false,
     .window = WindowRule::kAlways,
     .experts = ExpertRule::kMixtral,
     .interleaved_in_gguf = true,
     .default_kv_heads = 8,
     .default_context = 131072,
     .default_experts = 8,
     .default_experts_per_token = 2,
     .default_rms_norm_eps = 1e-5,
     .default_rope_theta = 1e6},
    {.name = "qwen2moe",
     .config_name = "qwen2_moe",
     .qkv_bias = true,
     .attention_bias_key = false,
     .window = WindowRule::kRefused,
     .experts = ExpertRule::kQwenShared,
     .default_kv_heads = 16,
     .default_context = 32768,
     .default_experts = 60,
     .default_experts_per_token = 4,
     .default_expert_size = 1408,
     .default_shared_expert_size = 5632,
     .normalized_in_gguf = false},
    {.name = "qwen3moe",
     .config_name = "qwen3_moe",
     .qk_norm = QkNorm::kHead,
     .window = WindowRule::kRefused,
     .experts = ExpertRule::kQwen,
     .default_kv_heads = 4,
     .default_context = 32768,
     .default_experts = 128,
     .default_experts_per_token = 8,
     .default_expert_size = 768},
    {.name = "granitemoe",
     .multipliers = true,
     .experts = ExpertRule::kMixtral,
     .interleaved_in_gguf = true,
     .default_experts = 8,
     .default_experts_per_token = 2},
    {.name = "gpt-oss",
     .config_name = "gpt_oss",
     .qkv_bias = true,
     .attention_sinks = true,
     .gpt_oss_experts = true,
     .yarn_truncates = false,
     .activation = Activation::kClampedSilu,
     .window = WindowRule::kPattern,
     .experts = ExpertRule::kMixtral,
     .default_window = 128,
     .window_pattern = 2,
     .default_heads = 64,
     .default_kv_heads = 8,
     .default_vocab = 201088,
     .default_head_dim = 64,
     .default_context = 131072,
     .default_experts = 128,
     .default_experts_per_token = 4,
     .default_rms_norm_eps = 1e-5,
     .default_rope_theta = 150000.0},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name ||
        (!name.empty() && (architecture.text_name == name || architecture.config_name == name))) {
      return &architecture;
    }
  }
  return nullptr;
}

const Architecture* find_gguf_architecture(std::string_view name, bool experts) {
  const auto has_name = [&](const Architecture& architecture) {
    return (architecture.gguf_name.empty() ? architecture.name : architecture.gguf_name) == name;
  };
  const Architecture* found = nullptr;
  for (const Architecture& architecture : kArchitectures) {
    if (!has_name(architecture)) continue;
    if (found == nullptr || (architecture.experts != ExpertRule::kNone) == experts) found = &architecture;
  }
  return found;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

std::string_view nearest_architecture(std::string_view unsupported) {
  constexpr size_t kLeast = 3;
  const auto letters = [](std::string_view name) {
    std::string result;
    for (const char c : name) {
      if (c != '_' && c != '-') result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return result;
  };
  const std::string wanted = letters(unsupported);
  std::string_view nearest;
  size_t most_shared = kLeast - 1, fewest_other = 0;
  for (const Architecture& architecture : kArchitectures) {
    const std::string name = letters(architecture.name);
    const auto parted = std::ranges::mismatch(name, wanted);
    const auto shared = static_cast<size_t>(parted.in1 - name.begin()), other = name.size() - shared;
    if (shared < kLeast || 2 * shared <= name.size() || shared < most_shared ||
        (shared == most_shared && other >= fewest_other))
      continue;
    most_shared = shared;
    fewest_other = other;
    nearest = architecture.name;
  }
  return nearest;
}

std::string expected_architecture(std::string_view unsupported) {
  const std::string_view nearest = nearest_architecture(unsupported);
  if (nearest.empty()) return "one of " + architecture_names();
  return '"' + std::string(nearest) + "\" (the nearest) or another of " + architecture_names();
}

}  // namespace smartkv
