// The pre-tokenizers that "tokenizer.ggml.pre" of a GGUF file names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/text/pre_tokenizer.h"

namespace smartkv {

// Returns the steps of a pre-tokenizer, or nullopt if the name is not known.
std::optional<std::vector<PreTokenizerStep>> gguf_pre_tokenizer(const std::string& pre);
// Returns the names that supported models use, for error messages. gguf_pre_tokenizer() accepts further names.
std::string gguf_pre_tokenizer_names();
// Returns whether the tokenizer is Llama 3's or a relative of it: a piece that is a token becomes that token, whatever
// the merges say, and BOS is added by default.
bool ignores_merges(const std::string& pre);
// Returns whether the tokenizer normalizes text to Unicode's form NFC.
bool is_nfc(const std::string& pre);

}  // namespace smartkv
