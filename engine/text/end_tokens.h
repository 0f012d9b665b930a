// Tokens that end an answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "engine/weights/model_config.h"

namespace smartkv {

// What a GGUF file names beside its end-of-sequence token. A purpose that it does not name is looked for by the names of tokens.
struct NamedEnds {
  std::optional<TokenId> turn, message;                    // eot_token_id, eom_token_id
  std::optional<TokenId> fill_pad, repository, separator;  // fim_pad_token_id, fim_rep_token_id, fim_sep_token_id
};

// Returns the end tokens that a vocabulary has, as llama.cpp finds them: `eos`, those that the file names, and those known by
// name, whatever their type. `find` returns the id of a token as written.
std::set<TokenId> find_end_tokens(const std::function<std::optional<TokenId>(std::string_view)>& find, std::optional<TokenId> eos,
                                  const NamedEnds& named = {});

// Returns the tokenizer's end tokens and those of config.json and generation_config.json, from 0 to `vocabulary` - 1.
std::set<TokenId> end_tokens(const Tokenizer& tokenizer, const ModelConfig& config, int64_t vocabulary);

}  // namespace smartkv
