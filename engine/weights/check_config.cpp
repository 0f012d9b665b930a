#include "engine/weights/check_config.h"

#include <cmath>

#include "engine/weights/weights.h"

namespace smartkv {

void check_config(const ModelConfig& c, const std::string& file) {
  const auto require = [&](bool holds, const std::string& field, const std::string& expected,
                           const std::string& found) {
    if (!holds) throw ModelError(file + ": " + field + ": expected " + expected + ", found " + found);
  };
  const auto size = [&](const char* field, int64_t value, int64_t largest) {
    require(value >= 1 && value <= largest, field, "a number from 1 to " + std::to_string(largest),
            std::to_string(value));
  };
  const auto positive = [&](const char* field, double value) {
    require(std::isfinite(value) && value > 0, field, "a positive number", std::to_string(value));
  };
  size("hidden_size", c.hidden_size, 1 << 20);
  size("intermediate_size", c.intermediate_size, 1 << 22);
  size("number of layers", c.n_layers, 1 << 12);
  size("number of heads", c.n_heads, 1 << 12);
  size("number of KV heads", c.n_kv_heads, 1 << 12);
  size("head_dim", c.head_dim, 1 << 10);
  size("vocab_size", c.vocab_size, 1 << 24);
  size("context length", c.context_length, int64_t{1} << 32);
  if (c.n_experts > 0) {
    size("number of experts", c.n_experts, 1 << 12);
    size("number of experts of a token", c.experts_per_token, c.n_experts);
    size("size of an expert", c.expert_size, 1 << 22);
  }
  if (c.shared_expert_size != 0) size("size of the shared expert", c.shared_expert_size, 1 << 22);
  require(c.n_heads % c.n_kv_heads == 0, "number of heads",
          "a multiple of the " + std::to_string(c.n_kv_heads) + " KV heads", std::to_string(c.n_heads));
  require(c.head_dim % 2 == 0, "head_dim", "an even number", std::to_string(c.head_dim));
  require(std::isfinite(c.rms_norm_eps) && c.rms_norm_eps >= 0, "rms_norm_eps", "a small positive number",
          std::to_string(c.rms_norm_eps));
  require(std::isfinite(c.rope.theta) && c.rope.theta > 1, "rope theta", "a number above 1",
          std::to_string(c.rope.theta));
  positive("rope scaling factor", c.rope.factor);
  positive("rope attention factor", c.rope.magnitude);
  require(c.rope.rotary_dim % 2 == 0 && c.rope.rotary_dim >= 0 && c.rope.rotary_dim <= c.head_dim, "rotary dimensions",
          "an even number up to head_dim, which is " + std::to_string(c.head_dim), std::to_string(c.rope.rotary_dim));
  const size_t half = static_cast<size_t>((c.rope.rotary_dim > 0 ? c.rope.rotary_dim : c.head_dim) / 2);
  const auto factors = [&](const std::string& name, const std::vector<float>& values, bool needed) {
    require((values.empty() && !needed) || values.size() == half, name, std::to_string(half) + " factors",
            std::to_string(values.size()));
  };
  const bool longrope = c.rope.scaling == RopeScaling::kLongRope;
  factors("rope_freqs.weight", c.rope.freq_factors, false);
  factors("short_factor", c.rope.short_factors, longrope);
  factors("long_factor", c.rope.long_factors, longrope);
  positive("embedding_multiplier", c.embedding_multiplier);
  positive("residual_multiplier", c.residual_multiplier);
  positive("logits_scaling", c.logits_divisor);
  require(std::isfinite(c.attention_soft_cap) && c.attention_soft_cap >= 0, "attn_logit_softcapping",
          "a positive number", std::to_string(c.attention_soft_cap));
  require(std::isfinite(c.logit_soft_cap) && c.logit_soft_cap >= 0, "final_logit_softcapping", "a positive number",
          std::to_string(c.logit_soft_cap));
  require(c.window_rope_theta == 0 || (std::isfinite(c.window_rope_theta) && c.window_rope_theta > 1),
          "rope theta of layers with a window", "a number above 1", std::to_string(c.window_rope_theta));
  require(std::isfinite(c.attention_multiplier) && c.attention_multiplier >= 0, "attention_multiplier",
          "a positive number", std::to_string(c.attention_multiplier));
}

}  // namespace smartkv
