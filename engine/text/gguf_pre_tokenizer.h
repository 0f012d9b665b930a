// The cut into words that "tokenizer.ggml.pre" of a GGUF file names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/text/pre_tokenizer.h"

namespace smartkv {

// nullopt: the name is not known.
std::optional<std::vector<PreTokenizerStep>> gguf_pre_tokenizer(const std::string& pre);
std::string gguf_pre_tokenizer_names();  // those that models have, for errors
// A piece that is a token is that token, whatever the merges say, and BOS comes first: Llama 3's tokenizer and its relatives.
bool ignores_merges(const std::string& pre);
bool is_nfc(const std::string& pre);  // The model's tokenizer brings text to Unicode's form NFC.

}  // namespace smartkv
