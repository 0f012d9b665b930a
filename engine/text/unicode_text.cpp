#include "engine/text/unicode_text.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <utf8proc.h>

#include "engine/text/utf8.h"

namespace smartkv {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

// U+11A7 precedes the final Hangul letters in Unicode and composes with nothing. utf8proc 2.8 mistakes it for a final
// letter.
constexpr utf8proc_int32_t kFillerBeforeFinals = 0x11a7;
constexpr size_t kMostDecomposed = 18;  // Characters in the compatibility decomposition of U+FDFA.

int combining_class(utf8proc_int32_t character) { return utf8proc_get_property(character)->combining_class; }

// Puts the combining marks after each character in canonical order. utf8proc needs quadratic time for this.
void sort_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto is_mark = [](utf8proc_int32_t character) { return combining_class(character) != 0; };
  for (auto at = characters.begin(); (at = std::find_if(at, characters.end(), is_mark)) != characters.end();) {
    const auto end = std::find_if_not(at, characters.end(), is_mark);
    std::stable_sort(at, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
}

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    std::array<utf8proc_int32_t, kMostDecomposed> parts;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(utf8_decode(utf8_next(text))),
                                                       parts.data(), parts.size(), options, nullptr);
    characters.insert(characters.end(), parts.begin(), parts.begin() + n);
  }
  sort_marks(characters);
  std::string out;
  for (std::span<utf8proc_int32_t> rest(characters); !rest.empty();) {
    const auto end = std::find(rest.begin() + 1, rest.end(), kFillerBeforeFinals);
    const auto part = rest.first(static_cast<size_t>(end - rest.begin()));
    rest = rest.subspan(part.size());
    auto size = static_cast<utf8proc_ssize_t>(part.size());
    if (compose) size = utf8proc_normalize_utf32(part.data(), size, options);
    for (const utf8proc_int32_t character : part.first(static_cast<size_t>(size)))
      utf8_append(out, static_cast<char32_t>(character));
  }
  return out;
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const char32_t character = utf8_decode(utf8_next(text));
    if (character == 0x130) {
      out += "i\xcc\x87";  // The only character whose lower case has two characters.
    } else {
      utf8_append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))));
    }
  }
  return out;
}

size_t grapheme_length(std::string_view text) {
  size_t at = 0;
  utf8proc_int32_t state = 0, last = 0;
  for (std::string_view rest = text; !rest.empty(); at = text.size() - rest.size()) {
    const auto next = static_cast<utf8proc_int32_t>(utf8_decode(utf8_next(rest)));
    if (at > 0 && utf8proc_grapheme_break_stateful(last, next, &state)) break;
    last = next;
  }
  return at;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view strip_white_space(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0 || !is_white_space(utf8_decode(text.substr(0, length)))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    const size_t last = utf8_last_start(text);
    if (!is_white_space(utf8_decode(text.substr(last)))) break;
    text = text.substr(0, last);
  }
  return text;
}

}  // namespace smartkv
