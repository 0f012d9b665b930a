// tokenizer.model, the file of the SentencePiece library, through that library.
#pragma once

#include <filesystem>
#include <memory>

#include "engine/text/tokenizer_json.h"

namespace smartkv {

std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& file, const TokenizerConfig& config);

}  // namespace smartkv
