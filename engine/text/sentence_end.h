// Finds places where a text of tokens can be split, or something can be inserted, without breaking a sentence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "engine/text/tokenizer.h"

namespace smartkv {

// Returns the first place at or after `position` where a sentence or a line ends. Looks at most 64 tokens ahead, and
// returns `position` if there is no such place.
template <typename Token>
int64_t sentence_end(const Tokenizer& tokenizer, std::span<const Token> text, int64_t position) {
  constexpr int64_t kLookAhead = 64;
  const int64_t last = std::min(position + kLookAhead, static_cast<int64_t>(text.size()));
  for (int64_t i = position; i < last; ++i) {
    const std::string bytes = tokenizer.token_bytes(static_cast<TokenId>(text[static_cast<size_t>(i)]));
    if (bytes.ends_with('.') || bytes.ends_with('\n')) return i + 1;
  }
  return position;
}

}  // namespace smartkv
