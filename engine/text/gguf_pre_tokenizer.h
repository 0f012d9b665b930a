// The cut into words that "tokenizer.ggml.pre" of a GGUF file names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/text/bpe_tokenizer.h"

namespace smartkv {

// nullopt: the name is not known.
std::optional<std::vector<PreTokenizerStep>> gguf_pre_tokenizer(const std::string& pre);
std::string gguf_pre_tokenizer_names();  // those that models have, for errors
// Llama 3's, with its ignore_merges and BOS.
bool is_llama3_pre_tokenizer(const std::string& pre);

}  // namespace smartkv
