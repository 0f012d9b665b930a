#include "engine/weights/check_config.h"

#include <cmath>

#include "engine/weights/weights.h"

namespace smartkv {

void check_config(const ModelConfig& c, const std::string& file) {
  const auto require = [&](bool holds, const std::string& field, const std::string& expected, const std::string& found) {
    if (!holds) throw ModelError(file + ": " + field + ": expected " + expected + ", found " + found);
  };
  const auto size = [&](const char* field, int64_t value, int64_t largest) {
    require(value >= 1 && value <= largest, field, "a number from 1 to " + std::to_string(largest), std::to_string(value));
  };
  size("hidden_size", c.hidden_size, 1 << 20);
  size("intermediate_size", c.intermediate_size, 1 << 22);
  size("number of layers", c.n_layers, 1 << 12);
  size("number of heads", c.n_heads, 1 << 12);
  size("number of KV heads", c.n_kv_heads, 1 << 12);
  size("head_dim", c.head_dim, 1 << 10);
  size("vocab_size", c.vocab_size, 1 << 24);
  size("context length", c.context_length, int64_t{1} << 32);
  require(c.n_heads % c.n_kv_heads == 0, "number of heads", "a multiple of the " + std::to_string(c.n_kv_heads) + " KV heads",
          std::to_string(c.n_heads));
  require(c.head_dim % 2 == 0, "head_dim", "an even number", std::to_string(c.head_dim));
  require(std::isfinite(c.rms_norm_eps) && c.rms_norm_eps >= 0, "rms_norm_eps", "a small positive number", std::to_string(c.rms_norm_eps));
  require(std::isfinite(c.rope.theta) && c.rope.theta > 1, "rope theta", "a number above 1", std::to_string(c.rope.theta));
  require(std::isfinite(c.rope.factor) && c.rope.factor > 0, "rope scaling factor", "a positive number", std::to_string(c.rope.factor));
  const size_t half = static_cast<size_t>(c.head_dim / 2);
  require(c.rope.freq_factors.empty() || c.rope.freq_factors.size() == half, "rope_freqs.weight",
          std::to_string(half) + " factors", std::to_string(c.rope.freq_factors.size()));
}

}  // namespace smartkv
