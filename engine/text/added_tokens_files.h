// Readers of the files of a Hugging Face folder that list added tokens, except tokenizer.json. All functions throw
// TokenizerError naming the key at fault.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/text/json_node.h"
#include "engine/text/tokenizer_json.h"

namespace smartkv {

// Reads a token's content and switches.
AddedToken read_added_token(const JsonNode& node, TokenId id);
// Reads added_tokens_decoder of tokenizer_config.json: {"id": token}.
std::vector<AddedToken> read_added_tokens_decoder(const JsonNode& node);
// Adds the tokens of added_tokens.json, {content: id}, that `config` does not have.
void add_listed_tokens(const nlohmann::json& tokens, const std::string& file, TokenizerConfig* config);
// Reads special_tokens_map.json, or the same keys of tokenizer_config.json. Sets bos and eos of `config` if they are
// empty, and marks the tokens that the file names as special.
void add_special_tokens(const nlohmann::json& map, const std::string& file, TokenizerConfig* config);

}  // namespace smartkv
