// The tokenizers and strings of tests/fixtures/tokenizers.
#pragma once

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_json.h"
#include "engine/text/utf8.h"

namespace smartkv {

inline const std::string kTokenizerFixtures = SMARTKV_FIXTURES "/tokenizers/";

inline std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline std::unique_ptr<Tokenizer> tokenizer_of_json(const std::string& text, const TokenizerConfig& config = {}) {
  return make_bpe_tokenizer(parse_tokenizer_json(parse_json(text, "tokenizer.json"), config, "tokenizer.json"));
}

// Opens "smollm2" (the default model's own), "llama3", "deepseek_llm", "deepseek_coder", "llama2" or "sentencepiece".
inline std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "smollm2") return load_tokenizer(SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (name == "sentencepiece") {
    TokenizerConfig config;
    config.legacy = true;
    return load_sentencepiece(kTokenizerFixtures + "sentencepiece.model", config);
  }
  TokenizerConfig config{"<s>", "</s>"};
  if (name == "llama3") config = {"<|begin_of_text|>", "<|eot_id|>"};
  if (name.starts_with("deepseek")) config = {"<|begin_of_text|>", ""};
  return tokenizer_of_json(read_file(kTokenizerFixtures + name + ".json"), config);
}

// Repeats the strings of make.py's generated(), in their order.
class GeneratedStrings {
 public:
  GeneratedStrings() {
    for (const auto& part : nlohmann::json::parse(read_file(kTokenizerFixtures + "fragments.json"))) {
      parts_.emplace_back();
      for (const auto& byte : part) parts_.back() += static_cast<char>(byte.get<int>());
    }
  }
  std::string next() {
    std::string text;
    for (uint64_t n = number() % 14; n > 0; --n) {
      const uint64_t kind = number() % 10;
      if (kind < 8) {
        text += parts_[number() % parts_.size()];
      } else if (kind == 8) {
        text += static_cast<char>(32 + number() % 95);
      } else {
        utf8_append(text, static_cast<char32_t>(0xa0 + number() % 0xd700));
      }
    }
    return text;
  }

 private:
  uint64_t number() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_ = 1;
  std::vector<std::string> parts_;
};

}  // namespace smartkv
