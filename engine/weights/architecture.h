// The supported architectures: LLaMA and the relatives whose differences from it fit in one row of a table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/weights/model_config.h"

namespace smartkv {

// When the key "sliding_window" has an effect.
//  - kNone: never. The architecture has no such key.
//  - kAlways: always.
//  - kWhenUsed: if "use_sliding_window" is true.
//  - kRefused: if "use_sliding_window" is true, which is refused.
//  - kPattern: in all layers but the last of every so many (Architecture::window_pattern).
enum class WindowRule : uint8_t { kNone, kAlways, kWhenUsed, kRefused, kPattern };

// Whether MLPs are experts, and by which keys.
//  - kNone: all MLPs are dense.
//  - kMixtral: "num_local_experts" of "intermediate_size" in all layers, with normalized weights.
//  - kQwen: "num_experts" of "moe_intermediate_size", unless "mlp_only_layers" or "decoder_sparse_step" says that a
//    layer is dense. "norm_topk_prob" normalizes the weights.
//  - kQwenShared: the same, and a shared expert of "shared_expert_intermediate_size".
enum class ExpertRule : uint8_t { kNone, kMixtral, kQwen, kQwenShared };

// The differences of an architecture from LLaMA, and the defaults that Hugging Face transformers uses for absent keys.
struct Architecture {
  std::string_view name;  // config.json's "model_type" and GGUF's "general.architecture", unless they follow
  std::string_view config_name = {};  // "model_type" if it is not `name`
  std::string_view gguf_name = {};    // "general.architecture" if it is not `name`
  // Another "model_type". It is that of the text model if `name` is also a model of texts and images, whose config.json
  // has it as "text_config". Empty if there is none.
  std::string_view text_name = {};

  bool qkv_bias = false;           // q, k and v have biases whatever the keys say
  bool attention_bias_key = true;  // the architecture has the key "attention_bias"
  bool mlp_bias_key = false;       // the architecture has the key "mlp_bias"
  bool fused_projections = false;  // q, k and v are one tensor, gate and up another
  bool attention_sinks = false;
  // Experts have biases, as has the router, and Hugging Face files keep gate and up in neighbouring rows (MXFP4) or
  // columns (floats, which are transposed).
  bool gpt_oss_experts = false;
  bool yarn_truncates = true;   // RopeConfig::truncate, unless a key says otherwise
  bool partial_rotary = false;  // the architecture has the key "partial_rotary_factor"
  bool multipliers = false;     // Granite's four multipliers: embedding, attention, residual, logits
  // The last of every so many layers has no RoPE, unless keys say otherwise. 0 if all layers have RoPE.
  int64_t rope_free_interval = 0;
  QkNorm qk_norm = QkNorm::kNone;
  NormPlacement norm_placement = NormPlacement::kInput;
  bool norms_add_one = false;      // norms multiply by 1 + weight; GGUF files have the sum
  bool scaled_embeddings = false;  // embeddings are multiplied by sqrt(hidden_size)
  Activation activation = Activation::kSilu;
  // Layers with a window have a RoPE of their own: this base, unless keys say otherwise, without scaling. 0 if not.
  double default_window_rope_theta = 0.0;
  // Of the keys "attn_logit_softcapping" and "final_logit_softcapping"; 0 if the architecture has none.
  double default_attention_soft_cap = 0.0, default_logit_soft_cap = 0.0;
  int64_t default_query_scalar = 0;  // of the key "query_pre_attn_scalar"; 0 if the architecture has none
  // GGUF files do not have that key. Models with this many layers have the query scalar hidden_size / n_heads in place
  // of head_dim. 0 if there are none.
  int64_t hidden_scalar_layers = 0;
  WindowRule window = WindowRule::kNone;
  ExpertRule experts = ExpertRule::kNone;
  bool interleaved_in_gguf = false;  // GGUF files order the rows of q and k for RoPE on neighbouring elements

  int64_t default_window = 0;
  int64_t window_pattern = 0;  // of kPattern, unless keys say otherwise
  int64_t default_heads = 0;   // 0 if the key is required; of KV heads, the number of heads
  int64_t default_kv_heads = 0;
  int64_t default_vocab = 0;     // 0 if the key is required
  int64_t default_head_dim = 0;  // 0 for hidden_size / num_attention_heads
  int64_t default_context = 2048;
  int64_t default_experts = 0, default_experts_per_token = 0, default_expert_size = 0, default_shared_expert_size = 0;
  bool normalized_in_gguf = true;  // the weights of chosen experts, unless a key says otherwise
  double default_rms_norm_eps = 1e-6;
  double default_rope_theta = 10000.0;
  bool default_tied = false;
};

// Both return nullptr if the architecture is not supported. `name`: Architecture::name or "model_type".
const Architecture* find_architecture(std::string_view name);
// experts: whether the file has experts. `llama` with experts is Mixtral.
const Architecture* find_gguf_architecture(std::string_view name, bool experts);
std::string architecture_names();  // "llama, mistral, ..."
// Returns the name of the supported architecture that is most like an unsupported one, so "qwen3" for "qwen3_next".
// Returns an empty name if none begins with the same three letters, or if they are no more than half of its letters.
std::string_view nearest_architecture(std::string_view unsupported);
// Returns what to expect in place of an unsupported architecture: the nearest one, if there is one, and all names.
std::string expected_architecture(std::string_view unsupported);

}  // namespace smartkv
