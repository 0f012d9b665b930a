// Byte-pair encoding of one piece of text (Sennrich et al. 2016) over characters. Byte-level vocabularies get the characters that
// stand for bytes (byte_level.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

struct BpeOptions {
  bool byte_fallback = false;  // a character without a token becomes its bytes' tokens <0x00> to <0xFF>
  bool fuse_unknown = false;   // neighbouring unknown characters become one unknown token
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  TokenId unknown = -1;        // -1: unknown characters are dropped
};

struct BpeMerge {
  TokenId left, right;
  int32_t rank;  // the lowest goes first; of equal ones, the leftmost
};

class Bpe {
 public:
  // `tokens`: the text of each id; empty: an id that encode() never makes. A merge whose result is no token is a
  // TokenizerError; of two merges of one pair the later counts.
  Bpe(std::vector<std::string> tokens, std::span<const BpeMerge> merges, const BpeOptions& options);

  // Appends the tokens of a piece. Thread-safe; time is O(n log n) whatever the piece.
  void encode(std::string_view piece, std::vector<TokenId>* ids) const;

  bool has_byte_tokens() const;  // one for each byte, so that encode() drops nothing
  const std::string& text_of(TokenId id) const { return tokens_[static_cast<size_t>(id)]; }
  TokenId id_of(std::string_view text) const;  // -1: none
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  struct Merge {
    uint64_t pair;  // left << 32 | right; kNoPair: an empty slot
    int32_t rank;
    TokenId result;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  TokenId id_of_character(std::string_view character) const;
  const Merge* find_merge(TokenId left, TokenId right) const;
  void symbols_of(std::string_view piece, std::vector<TokenId>* ids) const;
  void merge_short(std::vector<TokenId>* ids) const;
  void merge_long(std::vector<TokenId>* ids) const;

  std::vector<std::string> tokens_;
  BpeOptions options_;
  std::unordered_map<std::string, TokenId, Hash, std::equal_to<>> ids_;
  std::vector<Merge> merges_;  // open addressing; its size is a power of two
  std::array<TokenId, 512> character_ids_;  // of the first characters of Unicode as symbols; -1: none
  std::array<TokenId, 256> byte_ids_;       // of byte tokens; -1: none
};

}  // namespace smartkv
