// Operations on text that need Unicode's data, taken from utf8proc. REQUIRES for all functions: `text` is valid UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace smartkv {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Returns `text` in a Unicode normalization form.
std::string normal_form(std::string_view text, NormalForm form);
// Returns `text` with each character in lower case, whatever its neighbours.
std::string lower_case(std::string_view text);
// Returns the length in bytes of the extended grapheme cluster at the start of `text`; 0 for an empty text.
size_t grapheme_length(std::string_view text);
bool is_white_space(char32_t character);  // Unicode's property White_Space.
// Returns `text` without white space at its left end, its right end, or both.
std::string_view strip_white_space(std::string_view text, bool left, bool right);

}  // namespace smartkv
