// A random model of two layers in a Hugging Face folder, with a tokenizer and a chat template. For commands that take
// files.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/weights/safetensors.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv::test {

class TinyModelFolder {
 public:
  explicit TinyModelFolder(const std::string& name) : path_(std::filesystem::path(::testing::TempDir()) / name) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    const std::filesystem::path fixtures = SMARTKV_FIXTURES;
    std::filesystem::copy(fixtures / "tokenizers" / "sentencepiece.model", path_ / "tokenizer.model");
    std::filesystem::copy(fixtures / "chat_templates" / "vicuna.jinja", path_ / "chat_template.jinja");
    ModelConfig config = tiny_config();
    config.n_heads = 2;
    config.n_kv_heads = 1;
    config.n_layers = 2;
    config.head_dim = 64;
    config.vocab_size = 800;  // as many as the tokenizer has
    config.context_length = 1024;
    const nlohmann::json json = {{"model_type", "llama"},
                                 {"hidden_size", config.hidden_size},
                                 {"intermediate_size", config.intermediate_size},
                                 {"num_hidden_layers", config.n_layers},
                                 {"num_attention_heads", config.n_heads},
                                 {"num_key_value_heads", config.n_kv_heads},
                                 {"head_dim", config.head_dim},
                                 {"vocab_size", config.vocab_size},
                                 {"max_position_embeddings", config.context_length},
                                 {"rms_norm_eps", 1e-5},
                                 {"tie_word_embeddings", true},
                                 {"eos_token_id", 2}};
    std::ofstream(path_ / "config.json") << json;
    const TinyWeights weights(config);
    std::vector<NamedTensor> tensors;
    for (const std::string& tensor : weights.names()) {
      const std::vector<int64_t> shape = weights.find(tensor)->shape;
      tensors.push_back({tensor, shape, weights.read(tensor, shape)});
    }
    write_safetensors(path_ / "model.safetensors", tensors, TensorType::kF32);
  }
  ~TinyModelFolder() { std::filesystem::remove_all(path_); }
  TinyModelFolder(const TinyModelFolder&) = delete;
  TinyModelFolder& operator=(const TinyModelFolder&) = delete;

  std::string path() const { return path_.string(); }
  // Writes a file with this many sentences beside the model and returns its path.
  std::string text(const std::string& name, int sentences) const {
    std::ofstream file(path_ / name);
    for (int i = 0; i < sentences; ++i) file << "It rained for " << i << " days, and " << i * i << " birds came back. ";
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace smartkv::test
