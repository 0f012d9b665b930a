// End tokens: the tokens that end an answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "engine/weights/model_config.h"

namespace smartkv {

// Tokens that a GGUF file names in addition to its end-of-sequence token. If the file does not name the token for a
// purpose, it is looked up by its usual names.
struct NamedEnds {
  std::optional<TokenId> turn, message;                    // eot_token_id, eom_token_id
  std::optional<TokenId> fill_pad, repository, separator;  // fim_pad_token_id, fim_rep_token_id, fim_sep_token_id
};

// Returns the end tokens of a vocabulary, found as llama.cpp finds them: `eos`, the tokens in `named`, and tokens with
// well-known names, whatever their type. `find` returns the id of a token from its text in the vocabulary.
std::set<TokenId> find_end_tokens(const std::function<std::optional<TokenId>(std::string_view)>& find,
                                  std::optional<TokenId> eos, const NamedEnds& named = {});

// Returns the end tokens of the tokenizer and those of the configuration (config.json and generation_config.json).
// Leaves out ids that are not below `vocabulary`.
std::set<TokenId> end_tokens(const Tokenizer& tokenizer, const ModelConfig& config, int64_t vocabulary);

}  // namespace smartkv
