// From tokens, as the vocabulary writes them, back to text: the decoders of the Hugging Face tokenizers library.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/text/json_node.h"

namespace smartkv {

// Rewrites the texts of tokens in order; a step may join them. `whole`: they are a whole text, else a part from its middle, which
// has neither the text's beginning nor its end. Texts of several tokens may be bytes that are no UTF-8.
using DecoderStep = std::function<void(std::vector<std::string>* texts, bool whole)>;

// Returns what the steps make of the texts, joined.
std::string decode_texts(const std::vector<DecoderStep>& steps, std::vector<std::string> texts, bool whole);

// Reads "decoder" of tokenizer.json. Throws TokenizerError naming the key at fault.
std::vector<DecoderStep> read_decoder(const JsonNode& node);

DecoderStep decode_byte_level();
// The steps of SentencePiece vocabularies with byte tokens. `strips`: the space at the beginning of a text is dropped.
std::vector<DecoderStep> sentencepiece_decoder(bool strips);

}  // namespace smartkv
