// The pipeline of a Hugging Face tokenizer with a BPE model: added tokens, normalizer, pre-tokenizer, BPE, post-processor, and the
// decoder back. tokenizer.json and GGUF metadata both become a BpeTokenizerSpec.
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
  std::vector<std::string> contents;  // of each id, as written in the vocabulary
  std::vector<BpeMerge> merges;
  BpeOptions bpe;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  std::vector<TokenId> prefix, suffix;  // of the post-processor
  std::optional<TokenId> bos, eos;
  std::set<TokenId> ends;  // end_tokens.h
  std::vector<std::string> warnings;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerSpec spec);

}  // namespace smartkv
