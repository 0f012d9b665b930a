// The decoders of the Hugging Face tokenizers library. A decoder turns tokens, as the vocabulary writes them, into
// text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/json_node.h"

namespace smartkv {

inline constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// Rewrites the texts of consecutive tokens. A step may join texts. If `whole` is true, they are a whole text; otherwise
// they are a part from the middle of a text, which has neither its beginning nor its end. The bytes of a text need not
// be valid UTF-8. Thread-safe.
using DecoderStep = std::function<void(std::vector<std::string>* texts, bool whole)>;

// Applies the steps to the texts and returns the results joined.
std::string decode_texts(const std::vector<DecoderStep>& steps, std::vector<std::string> texts, bool whole);

// Reads "decoder" of tokenizer.json. Throws TokenizerError naming the key at fault.
std::vector<DecoderStep> read_decoder(const JsonNode& node);

DecoderStep decode_byte_level();  // Turns stand-ins back into bytes (byte_level.h) and joins the texts.
// Returns the steps for SentencePiece vocabularies with byte tokens. If `strips` is true, the space at the beginning of
// a text is dropped.
std::vector<DecoderStep> sentencepiece_decoder(bool strips);

}  // namespace smartkv
