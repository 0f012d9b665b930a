// The pipeline of a Hugging Face tokenizer with a BPE model: added tokens, normalizer, pre-tokenizer, BPE,
// post-processor, and the decoder for the way back. The readers of tokenizer.json and of GGUF metadata both produce a
// BpeTokenizerSpec.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/text_decoder.h"
#include "engine/text/tokenizer.h"

namespace smartkv {

struct BpeTokenizerSpec {
  // The text of each id, as written in the vocabulary. Empty if no token has the id.
  std::vector<std::string> contents;
  std::vector<BpeMerge> merges;
  BpeOptions bpe;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  std::vector<TokenId> prefix, suffix;  // Tokens that the post-processor adds.
  std::optional<TokenId> bos, eos;
  std::set<TokenId> ends;             // End tokens (end_tokens.h).
  std::vector<std::string> warnings;  // Tokenizer::warnings()
};

// Throws TokenizerError if the result of a merge is not in the vocabulary.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerSpec spec);

}  // namespace smartkv
