// Tokenizers in tokenizer.model, the file of the SentencePiece library. They use that library.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/text/tokenizer_json.h"

namespace smartkv {

// Loads a tokenizer.model. config: the settings of the files beside it. Throws TokenizerError.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& file, const TokenizerConfig& config);

}  // namespace smartkv
