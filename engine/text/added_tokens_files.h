// The places outside tokenizer.json where a Hugging Face folder lists added tokens.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/text/json_node.h"
#include "engine/text/tokenizer_json.h"

namespace smartkv {

// Reads a token's content and switches. Throws TokenizerError naming the key at fault, as all functions here do.
AddedToken read_added_token(const JsonNode& node, TokenId id);
// Reads added_tokens_decoder of tokenizer_config.json: {"id": token}.
std::vector<AddedToken> read_added_tokens_decoder(const JsonNode& node);
// Adds the tokens of added_tokens.json, {content: id}, that `config` does not have.
void add_listed_tokens(const nlohmann::json& tokens, const std::string& file, TokenizerConfig* config);
// Takes bos_token and eos_token of special_tokens_map.json where `config` has none, and makes the tokens that the file names special.
// tokenizer_config.json has the same keys.
void add_special_tokens(const nlohmann::json& map, const std::string& file, TokenizerConfig* config);

}  // namespace smartkv
