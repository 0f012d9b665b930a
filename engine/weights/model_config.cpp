#include "engine/weights/model_config.h"

#include <algorithm>
#include <numeric>

namespace smartkv {

NormNames norm_names(NormPlacement placement) {
  switch (placement) {
    case NormPlacement::kInput: return {"input_layernorm", "", "post_attention_layernorm", ""};
    case NormPlacement::kOutput: return {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
    case NormPlacement::kBoth: break;
  }
  return {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
}

int64_t ModelConfig::mlp_weights_per_token(int64_t layer) const {
  if (!has_experts(layer)) return 3 * hidden_size * intermediate_size;
  const int64_t gate = shared_expert_size > 0 ? 1 : 0;
  return hidden_size * (n_experts + gate + 3 * (experts_per_token * expert_size + shared_expert_size));
}

RopeConfig ModelConfig::window_rope() const {
  if (window_rope_theta == 0.0) return rope;
  RopeConfig plain;
  plain.theta = window_rope_theta;
  plain.rotary_dim = rope.rotary_dim;
  plain.original_context = rope.original_context;
  return plain;
}

int64_t ModelConfig::n_window_layers() const {
  if (sliding_window == 0) return 0;
  return window_layers.empty() ? n_layers : std::count(window_layers.begin(), window_layers.end(), true);
}

std::vector<int64_t> ModelConfig::cache_order() const {
  std::vector<int64_t> order(static_cast<size_t>(n_layers));
  std::iota(order.begin(), order.end(), 0);
  std::stable_partition(order.begin(), order.end(), [this](int64_t layer) { return !has_window(layer); });
  return order;
}

}  // namespace smartkv
