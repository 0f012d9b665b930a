// The pipeline of a Hugging Face tokenizer with a BPE model: added tokens, normalizer, pre-tokenizer, BPE,
// post-processor. tokenizer.json and GGUF metadata both become a BpeTokenizerSpec.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/split_pattern.h"
#include "engine/text/tokenizer.h"

namespace smartkv {

struct NormalizerStep {
  enum class Kind : uint8_t { kPrepend, kReplace } kind;
  std::string pattern;  // of kReplace: plain text
  std::string content;
};

struct PreTokenizerStep {
  enum class Kind : uint8_t { kPattern, kPrefixSpace, kMetaspace } kind;
  std::optional<SplitPattern> pattern = {};  // kPattern: pieces are its matches and what lies between
  enum class Prepend : uint8_t { kNever, kFirst, kAlways } prepend = Prepend::kNever;  // kMetaspace
  bool split = false;  // kMetaspace: a piece begins at each U+2581
};

struct BpeTokenizerSpec {
  std::vector<std::string> contents;  // of each id, as written in the vocabulary
  std::vector<BpeMerge> merges;
  BpeOptions bpe;                     // byte_level: contents are GPT-2's printable stand-ins of bytes
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<TokenId> prefix, suffix;  // of the post-processor
  bool strip_leading_space = false;     // decode() drops the space that the normalizer put in front
  std::optional<TokenId> bos, eos;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerSpec spec);

// GPT-2's cut of text into words, as the ByteLevel pre-tokenizer has it.
SplitPattern gpt2_pattern();
// The byte that a printable stand-in of GPT-2's byte-level vocabulary means; -1: none.
int byte_of_stand_in(char32_t character);

}  // namespace smartkv
