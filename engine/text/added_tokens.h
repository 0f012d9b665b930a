// Tokens that are matched as a whole before the text is cut: special tokens and user-defined ones.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool special = true;
  bool normalized = false;   // matched after the normalizer, else before it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool single_word = false;  // not inside a word
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  AddedTokens(AddedTokens&&) = default;  // no copies: by_first_ points into tokens_
  AddedTokens& operator=(AddedTokens&&) = default;

  struct Piece {
    std::string_view text;
    const AddedToken* token;  // nullptr: plain text
  };
  // Cuts the text at the tokens in it: the leftmost, then the longest. with_special false: special ones are plain text.
  // A token that may not stand where it was found is plain text as a whole, without a look for shorter ones in it.
  void split(std::string_view text, bool with_special, std::vector<Piece>* pieces) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;  // nullptr: none

  std::vector<AddedToken> tokens_;                      // longest first
  std::array<std::vector<const AddedToken*>, 256> by_first_;  // the same, by first byte
};

}  // namespace smartkv
