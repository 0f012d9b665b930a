// UTF-8 by hand: what the tokenizers and the stream decoder need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace smartkv {

// Length of the valid character at the start of `text`, 1 to 4; 0 if there is none (broken, cut off, or empty).
size_t utf8_length(std::string_view text);
// How many bytes a decoder skips for the broken character at the start: the maximal subpart (Unicode 3.9), at least 1.
size_t utf8_broken_length(std::string_view text);
// `text` could become a valid character with more bytes behind it.
bool utf8_is_prefix(std::string_view text);
// The text with each broken subpart as U+FFFD, as Python's errors="replace" has it.
std::string utf8_repair(std::string_view text);
bool utf8_is_valid(std::string_view text);
size_t utf8_last_start(std::string_view text);  // the offset of the last character of a valid text that is not empty
char32_t utf8_decode(std::string_view character);  // of one valid character
void utf8_append(std::string& text, char32_t character);

}  // namespace smartkv
