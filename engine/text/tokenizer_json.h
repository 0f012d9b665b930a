// tokenizer.json, the file of the Hugging Face tokenizers library.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/text/bpe_tokenizer.h"

namespace smartkv {

// What the files beside it say: tokenizer_config.json, added_tokens.json and special_tokens_map.json.
struct TokenizerConfig {
  std::string bos, eos;  // contents; empty: none
  // For tokenizer.model; tokenizer.json says these itself.
  std::optional<bool> add_bos = {}, add_eos = {};
  std::optional<bool> legacy = {};  // true: each text between special tokens gets a space in front, not only the first
  std::vector<AddedToken> added = {};
};
// `text` as JSON; TokenizerError where it is none, or nested deeper than any tokenizer is.
nlohmann::json parse_json(std::string_view text, const std::string& file);
TokenizerConfig parse_tokenizer_config(const nlohmann::json& config, const std::string& file);

// Throws TokenizerError naming the key that is wrong or asks for what is not supported. `file` names the source.
BpeTokenizerSpec parse_tokenizer_json(const nlohmann::json& json, const TokenizerConfig& config,
                                      const std::string& file);

}  // namespace smartkv
