// Byte-pair encoding (Sennrich et al. 2016) of one piece of text. Its symbols are characters. For byte-level
// vocabularies, the caller passes the stand-ins of bytes (byte_level.h).
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
  bool byte_fallback = false;  // A character without a token becomes the tokens of its bytes, <0x00> to <0xFF>.
  bool fuse_unknown = false;   // Neighbouring unknown characters become one unknown token.
  bool ignore_merges = false;  // A piece that is a token becomes that token, whatever the merges say.
  TokenId unknown = -1;        // The unknown token; -1 to drop unknown characters.
};

struct BpeMerge {
  TokenId left, right;
  int32_t rank;  // The merge of lowest rank is applied first; of several, the leftmost.
};

// Finds strings in a hash table without copying them.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

// Immutable after construction. Thread-safe.
class Bpe {
 public:
  // tokens: the text of each id. encode() never produces an id whose text is empty. If a pair has two merges, the later
  // one counts. Throws TokenizerError if the result of a merge is not a token.
  Bpe(std::vector<std::string> tokens, std::span<const BpeMerge> merges, const BpeOptions& options);

  // Appends the tokens of a piece. Takes O(n log n) time for any piece of n bytes.
  void encode(std::string_view piece, std::vector<TokenId>* ids) const;

  bool has_byte_tokens() const;  // Every byte has a token, so that encode() drops nothing.
  const std::string& text_of(TokenId id) const { return tokens_[static_cast<size_t>(id)]; }
  TokenId id_of(std::string_view text) const;  // -1 if no token has this text.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  struct Merge {
    uint64_t pair;  // left << 32 | right; kNoPair in an empty slot
    int32_t rank;
    TokenId result;
  };

  TokenId id_of_character(std::string_view character) const;
  const Merge* find_merge(TokenId left, TokenId right) const;                // Null if the pair has no merge.
  void symbols_of(std::string_view piece, std::vector<TokenId>* ids) const;  // Appends the tokens of the characters.
  void merge_short(std::vector<TokenId>* ids) const;  // Scans for the next merge: O(n^2), fast for few symbols.
  void merge_long(std::vector<TokenId>* ids) const;   // Keeps the next merges in a heap: O(n log n).

  std::vector<std::string> tokens_;
  BpeOptions options_;
  std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>> ids_;
  std::vector<Merge> merges_;               // A hash table with open addressing; its size is a power of two.
  std::array<TokenId, 512> character_ids_;  // Tokens of the first 512 characters of Unicode; -1 if there is none.
  std::array<TokenId, 256> byte_ids_;       // Byte tokens; -1 if there is none, or without byte_fallback.
};

}  // namespace smartkv
