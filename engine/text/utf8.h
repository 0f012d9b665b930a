// The UTF-8 functions that the tokenizers and the stream decoder need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace smartkv {

// Returns the length in bytes of the valid character at the start of `text`, 1 to 4. Returns 0 if there is none,
// because the text is malformed, cut off or empty.
size_t utf8_length(std::string_view text);
// Removes the valid character, or else one byte, from the start of `rest`, and returns it. REQUIRES: `rest` is not
// empty.
std::string_view utf8_next(std::string_view& rest);
// Returns how many bytes a decoder skips for the malformed character at the start of `text`: the maximal subpart
// (Unicode 3.9), at least 1.
size_t utf8_broken_length(std::string_view text);
// Returns whether `text` is the beginning of a valid character that needs more bytes.
bool utf8_is_prefix(std::string_view text);
// Returns the text with each malformed subpart replaced by U+FFFD, as Python's errors="replace" does.
std::string utf8_repair(std::string_view text);
bool utf8_is_valid(std::string_view text);
// Returns the offset of the last character. REQUIRES: `text` is valid and not empty.
size_t utf8_last_start(std::string_view text);
// Returns the code point of a character. REQUIRES: `character` is one valid character.
char32_t utf8_decode(std::string_view character);
void utf8_append(std::string& text, char32_t character);

}  // namespace smartkv
