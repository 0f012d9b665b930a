// Added tokens: special and user-defined tokens, which are matched as a whole before the text is split.
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
  bool normalized = false;   // Matched after the normalizer; if false, before it.
  bool lstrip = false;       // Includes the white space before it.
  bool rstrip = false;       // Includes the white space after it.
  bool single_word = false;  // Not matched next to a character of a word.
};

// Immutable after construction. Thread-safe.
class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  AddedTokens(AddedTokens&&) = default;  // Not copyable, because by_first_ points into tokens_.
  AddedTokens& operator=(AddedTokens&&) = default;

  struct Piece {
    std::string_view text;
    const AddedToken* token;  // Null for plain text.
  };
  // Appends the pieces of the text. The leftmost token is matched first; of several at the same place, the longest. If
  // `with_special` is false, special tokens are plain text. A token that is not allowed where it was found becomes
  // plain text as a whole: it is not searched for shorter tokens. Pieces point into `text` and into this object.
  void split(std::string_view text, bool with_special, std::vector<Piece>* pieces) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;  // Null if no token begins at `at`.

  std::vector<AddedToken> tokens_;                            // longest first
  std::array<std::vector<const AddedToken*>, 256> by_first_;  // The tokens by their first byte, longest first.
};

}  // namespace smartkv
