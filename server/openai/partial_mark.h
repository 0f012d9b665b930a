// Marks in a text that arrives piece by piece.
#pragma once

#include <algorithm>
#include <string_view>

namespace smartkv::openai {

// Returns the number of bytes at the end of `text` that begin `mark` without ending it.
inline size_t partial_mark(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

// Returns whether `text` begins with `mark`, or ends before the two differ.
inline bool may_begin_with(std::string_view text, std::string_view mark) {
  const size_t n = std::min(text.size(), mark.size());
  return text.substr(0, n) == mark.substr(0, n);
}

}  // namespace smartkv::openai
