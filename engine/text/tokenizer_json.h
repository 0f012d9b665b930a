// Reader of tokenizer.json, the file of the Hugging Face tokenizers library, and of the configuration files beside it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "engine/text/bpe_tokenizer.h"

namespace smartkv {

// The settings in tokenizer_config.json, added_tokens.json and special_tokens_map.json.
struct TokenizerConfig {
  std::string bos, eos;  // Texts of the tokens. Empty if there is none.
  // The fields below are for tokenizer.model. A tokenizer.json contains these settings itself.
  std::optional<bool> add_bos = {}, add_eos = {};
  std::optional<bool> legacy = {};  // Every text between special tokens gets a space in front, not only the first.
  std::vector<AddedToken> added = {};
};
std::string read_text_file(const std::filesystem::path& path);  // Throws TokenizerError also for an empty file.
// Parses JSON. Throws TokenizerError if `text` is not JSON, or is nested deeper than any tokenizer needs.
nlohmann::json parse_json(std::string_view text, const std::string& file);
// Reads a tokenizer_config.json. `file` names the source in errors. Throws TokenizerError naming the key at fault.
TokenizerConfig parse_tokenizer_config(const nlohmann::json& config, const std::string& file);

// Reads a tokenizer.json. `file` names the source in errors. Throws TokenizerError naming the key that is wrong or not
// supported.
BpeTokenizerSpec parse_tokenizer_json(const nlohmann::json& json, const TokenizerConfig& config,
                                      const std::string& file);

}  // namespace smartkv
