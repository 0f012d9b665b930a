// The shape of a LLaMA, as config.json or GGUF metadata give it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smartkv {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn };

struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_context = 0;  // original_max_position_embeddings; 0: the model's own context
  double low_freq_factor = 1.0, high_freq_factor = 4.0;              // llama3
  double beta_fast = 32.0, beta_slow = 1.0, attention_factor = 0.0;  // yarn; attention_factor 0: 0.1 ln(factor) + 1
  std::vector<float> freq_factors;  // each frequency is divided by its factor (GGUF's rope_freqs.weight); empty: none
};

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
  double rms_norm_eps = 1e-5;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::vector<int32_t> eos_token_ids;  // of config.json / generation_config.json; may be empty
};

}  // namespace smartkv
