#include "engine/text/jinja/strings.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>

#include "engine/text/utf8.h"

namespace smartkv::jinja {
namespace {

bool is_unicode_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::vector<char32_t> decode(const std::string& text) {
  std::vector<char32_t> out;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t n = utf8_length(rest);
    out.push_back(n == 0 ? 0xfffd : utf8_decode(rest.substr(0, n)));
    rest.remove_prefix(std::max<size_t>(1, n));
  }
  return out;
}
template <typename Iterator>
std::string encode(Iterator begin, Iterator end) {
  std::string out;
  for (; begin != end; ++begin) utf8_append(out, *begin);
  return out;
}

// Returns the locale with the C library's Unicode character tables, whatever the locale of the program.
locale_t unicode() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (locale == nullptr) throw RuntimeError{"the locale C.UTF-8 is missing on this machine"};
  return locale;
}
char32_t lower_of(char32_t c) { return static_cast<char32_t>(towlower_l(static_cast<wint_t>(c), unicode())); }
char32_t upper_of(char32_t c) { return static_cast<char32_t>(towupper_l(static_cast<wint_t>(c), unicode())); }
bool is_cased(char32_t c) {
  return c == 0xdf || iswupper_l(static_cast<wint_t>(c), unicode()) != 0 ||
         iswlower_l(static_cast<wint_t>(c), unicode()) != 0;
}

enum class Case : uint8_t { kLower, kUpper, kTitle };
void append(std::string& out, char32_t c, Case how) {
  if (c == 0xdf && how != Case::kLower) {
    out += how == Case::kUpper ? "SS" : "Ss";
  } else {
    utf8_append(out, how == Case::kLower ? lower_of(c) : upper_of(c));
  }
}

// Returns the number of characters before the byte `at`, or -1 for npos.
int64_t position(const std::string& text, size_t at) {
  return at == std::string::npos ? -1 : length(text.substr(0, at));
}

bool ends_line(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::string strip(const std::string& text, const std::string* set, bool start, bool end) {
  const std::vector<char32_t> characters = decode(text),
                              chosen = set == nullptr ? std::vector<char32_t>() : decode(*set);
  const auto strips = [&](char32_t c) {
    return set == nullptr ? is_unicode_space(c) : std::find(chosen.begin(), chosen.end(), c) != chosen.end();
  };
  size_t first = 0, last = characters.size();
  while (start && first < last && strips(characters[first])) ++first;
  while (end && last > first && strips(characters[last - 1])) --last;
  return encode(characters.begin() + static_cast<std::ptrdiff_t>(first),
                characters.begin() + static_cast<std::ptrdiff_t>(last));
}

std::vector<std::string> split_spaces(const std::string& text, int64_t most) {
  std::vector<std::string> parts;
  const std::vector<char32_t> characters = decode(text);
  const auto end = characters.end();
  for (auto at = std::find_if_not(characters.begin(), end, is_unicode_space); at != end;) {
    if (static_cast<int64_t>(parts.size()) == most) {  // The rest is one part.
      parts.push_back(encode(at, end));
      break;
    }
    const auto stop = std::find_if(at, end, is_unicode_space);
    parts.push_back(encode(at, stop));
    at = std::find_if_not(stop, end, is_unicode_space);
  }
  return parts;
}

std::vector<std::string> split_at(const std::string& text, const std::string& separator, int64_t most) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t found;
       static_cast<int64_t>(parts.size()) != most && (found = text.find(separator, at)) != std::string::npos;
       at = found + separator.size()) {
    parts.push_back(text.substr(at, found - at));
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<std::string> split_at_from_end(const std::string& text, const std::string& separator, int64_t most) {
  std::vector<std::string> parts;
  size_t end = text.size();
  while (static_cast<int64_t>(parts.size()) != most && end >= separator.size()) {
    const size_t found = text.rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    parts.push_back(text.substr(found + separator.size(), end - found - separator.size()));
    end = found;
  }
  parts.push_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  const std::vector<char32_t> characters = decode(text);
  for (auto at = characters.begin(); at != characters.end();) {
    auto stop = std::find_if(at, characters.end(), ends_line);
    lines.push_back(encode(at, stop));
    if (stop == characters.end()) break;
    const bool pair = *stop == '\r' && stop + 1 != characters.end() && stop[1] == '\n';
    at = stop + (pair ? 2 : 1);
  }
  return lines;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                    const Environment& environment) {
  std::string out;
  if (from.empty()) {  // Insert `to` between all characters.
    int64_t done = 0;
    for (const char32_t c : decode(text)) {
      if (done != most) {
        out += to;
        ++done;
      }
      utf8_append(out, c);
      environment.check_bytes(out.size());
    }
    if (done != most) out += to;
    return out;
  }
  const std::vector<std::string> parts = split_at(text, from, most);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += to;
    out += parts[i];
    environment.check_bytes(out.size());
  }
  return out;
}

std::string upper(const std::string& text) {
  std::string out;
  for (const char32_t c : decode(text)) append(out, c, Case::kUpper);
  return out;
}
std::string lower(const std::string& text) {
  const std::vector<char32_t> characters = decode(text);
  std::string out;
  for (size_t i = 0; i < characters.size(); ++i) {
    const bool ends_word =
        i > 0 && is_cased(characters[i - 1]) && (i + 1 == characters.size() || !is_cased(characters[i + 1]));
    append(out, characters[i] == 0x3a3 && ends_word ? U'\u03c2' : characters[i], Case::kLower);  // Final sigma.
  }
  return out;
}
std::string title(const std::string& text) {
  std::string out;
  bool inside = false;  // inside a word
  for (const char32_t c : decode(text)) {
    append(out, c, inside ? Case::kLower : Case::kTitle);
    inside = is_cased(c);
  }
  return out;
}
std::string title_words(const std::string& text) {
  std::string out;
  bool inside = false;
  for (const char32_t c : decode(text)) {
    append(out, c, inside ? Case::kLower : Case::kUpper);
    inside = !is_unicode_space(c) && c != '-' && c != '(' && c != '{' && c != '[' && c != '<';
  }
  return out;
}
std::string capitalize(const std::string& text) {
  std::string out;
  for (const char32_t c : decode(text)) append(out, c, out.empty() ? Case::kTitle : Case::kLower);
  return out;
}

int64_t length(const std::string& text) { return static_cast<int64_t>(decode(text).size()); }

int64_t find_character(const std::string& text, const std::string& part) { return position(text, text.find(part)); }

int64_t find_last_character(const std::string& text, const std::string& part) {
  return position(text, text.rfind(part));
}

int64_t count(const std::string& text, const std::string& part) {
  if (part.empty()) return length(text) + 1;
  return static_cast<int64_t>(split_at(text, part, -1).size()) - 1;
}

std::string substring(const std::string& text, int64_t from, int64_t to, int64_t step) {
  const std::vector<char32_t> characters = decode(text);
  std::string out;
  for (int64_t i = from; step > 0 ? i < to : i > to; i += step) utf8_append(out, characters[static_cast<size_t>(i)]);
  return out;
}

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace smartkv::jinja
