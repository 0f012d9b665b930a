// Where a text of tokens can be cut, or something put in, without breaking a sentence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "engine/text/tokenizer.h"

namespace smartkv {

// The first place from `position` on, within a few lines, where a sentence of the text ends; `position` if there is none.
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
