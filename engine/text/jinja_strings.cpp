#include "engine/text/jinja_strings.h"

#include <algorithm>

#include "engine/text/utf8.h"

namespace smartkv::jinja {
namespace {

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
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

char32_t lower_of(char32_t c) {
  if ((c >= 'A' && c <= 'Z') || (c >= 0xc0 && c <= 0xde && c != 0xd7) || (c >= 0x391 && c <= 0x3a9 && c != 0x3a2) || (c >= 0x410 && c <= 0x42f)) return c + 32;
  if (c >= 0x400 && c <= 0x40f) return c + 80;
  return c;
}
char32_t upper_of(char32_t c) {
  if ((c >= 'a' && c <= 'z') || (c >= 0xe0 && c <= 0xfe && c != 0xf7) || (c >= 0x3b1 && c <= 0x3c9 && c != 0x3c2) || (c >= 0x430 && c <= 0x44f)) return c - 32;
  if (c >= 0x450 && c <= 0x45f) return c - 80;
  return c;
}
bool is_letter(char32_t c) { return lower_of(c) != c || upper_of(c) != c || c == 0xdf || c > 0x17f; }

template <typename Function>
std::string mapped(const std::string& text, const Function& function) {
  std::vector<char32_t> characters = decode(text);
  bool inside = false;  // a word
  for (size_t i = 0; i < characters.size(); ++i) {
    const char32_t c = characters[i];
    characters[i] = function(c, i, inside);
    inside = is_letter(c);
  }
  return encode(characters.begin(), characters.end());
}

}  // namespace

std::string strip(const std::string& text, const std::string* set, bool start, bool end) {
  const std::vector<char32_t> characters = decode(text), chosen = set == nullptr ? std::vector<char32_t>() : decode(*set);
  const auto strips = [&](char32_t c) { return set == nullptr ? is_space(c) : std::find(chosen.begin(), chosen.end(), c) != chosen.end(); };
  size_t first = 0, last = characters.size();
  while (start && first < last && strips(characters[first])) ++first;
  while (end && last > first && strips(characters[last - 1])) --last;
  return encode(characters.begin() + static_cast<std::ptrdiff_t>(first), characters.begin() + static_cast<std::ptrdiff_t>(last));
}

std::vector<std::string> split_spaces(const std::string& text, int64_t most) {
  std::vector<std::string> parts;
  const std::vector<char32_t> characters = decode(text);
  const auto end = characters.end();
  for (auto at = std::find_if_not(characters.begin(), end, is_space); at != end;) {
    if (static_cast<int64_t>(parts.size()) == most) {  // the rest is one part
      parts.push_back(strip(encode(at, end), nullptr, false, true));
      break;
    }
    const auto stop = std::find_if(at, end, is_space);
    parts.push_back(encode(at, stop));
    at = std::find_if_not(stop, end, is_space);
  }
  return parts;
}

std::vector<std::string> split_at(const std::string& text, const std::string& separator, int64_t most) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t found; static_cast<int64_t>(parts.size()) != most && (found = text.find(separator, at)) != std::string::npos; at = found + separator.size()) {
    parts.push_back(text.substr(at, found - at));
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines = split_at(text, "\n", -1);
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t most, const Environment& environment) {
  std::string out;
  if (from.empty()) {  // between all characters
    int64_t done = 0;
    for (const char32_t c : decode(text)) {
      if (done != most) {
        out += to;
        ++done;
      }
      utf8_append(out, c);
      if (static_cast<int64_t>(out.size()) > environment.max_bytes) throw RuntimeError{"a string grows beyond the limit"};
    }
    if (done != most) out += to;
    return out;
  }
  const std::vector<std::string> parts = split_at(text, from, most);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += to;
    out += parts[i];
    if (static_cast<int64_t>(out.size()) > environment.max_bytes) throw RuntimeError{"a string grows beyond the limit"};
  }
  return out;
}

std::string upper(const std::string& text) {
  return mapped(text, [](char32_t c, size_t, bool) { return upper_of(c); });
}
std::string lower(const std::string& text) {
  return mapped(text, [](char32_t c, size_t, bool) { return lower_of(c); });
}
std::string title(const std::string& text) {
  return mapped(text, [](char32_t c, size_t, bool inside) { return inside ? lower_of(c) : upper_of(c); });
}
std::string capitalize(const std::string& text) {
  return mapped(text, [](char32_t c, size_t i, bool) { return i == 0 ? upper_of(c) : lower_of(c); });
}

int64_t length(const std::string& text) { return static_cast<int64_t>(decode(text).size()); }

int64_t find_character(const std::string& text, const std::string& part) {
  const size_t at = text.find(part);
  return at == std::string::npos ? -1 : length(text.substr(0, at));
}

int64_t count(const std::string& text, const std::string& part) {
  if (part.empty()) return length(text) + 1;
  return static_cast<int64_t>(split_at(text, part, -1).size()) - 1;
}

}  // namespace smartkv::jinja
