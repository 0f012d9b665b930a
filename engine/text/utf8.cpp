#include "engine/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace smartkv {
namespace {

// The properties of a character that follow from its first byte.
struct Lead {
  size_t length;                  // Bytes of the whole character. 0 if the byte cannot begin a character.
  unsigned char lowest, highest;  // Range of the second byte.
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xc2 && byte <= 0xdf) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};  // Excludes surrogates.
  if (byte >= 0xe1 && byte <= 0xef) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte >= 0xf1 && byte <= 0xf3) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

// Returns the number of bytes at the start that are well-formed as part of one character. Sets `*length` to the bytes
// that the whole character needs, or to 0 if the first byte cannot begin a character.
size_t well_formed_bytes(std::string_view text, size_t* length) {
  *length = 0;
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  *length = lead.length;
  if (lead.length == 0) return 0;
  size_t n = 1;
  while (n < lead.length && n < text.size()) {
    const unsigned char byte = static_cast<unsigned char>(text[n]);
    if (n == 1 ? byte < lead.lowest || byte > lead.highest : byte < 0x80 || byte > 0xbf) break;
    ++n;
  }
  return n;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  size_t length;
  return well_formed_bytes(text, &length) == length ? length : 0;
}

std::string_view utf8_next(std::string_view& rest) {
  const std::string_view character = rest.substr(0, std::max<size_t>(1, utf8_length(rest)));
  rest.remove_prefix(character.size());
  return character;
}

size_t utf8_broken_length(std::string_view text) {
  size_t length;
  const size_t n = well_formed_bytes(text, &length);
  return n == 0 ? 1 : n;
}

bool utf8_is_prefix(std::string_view text) {
  size_t length;
  const size_t n = well_formed_bytes(text, &length);
  return n == text.size() && n < length;
}

bool utf8_is_valid(std::string_view text) {
  while (!text.empty()) {
    uint64_t word;
    if (text.size() >= sizeof word) {
      std::memcpy(&word, text.data(), sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        text.remove_prefix(sizeof word);
        continue;
      }
    }
    const size_t n = utf8_length(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

size_t utf8_last_start(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

std::string utf8_repair(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  while (!text.empty()) {
    size_t n = utf8_length(text);
    if (n > 0) {
      repaired.append(text.substr(0, n));
    } else {
      n = utf8_broken_length(text);
      repaired += "\xef\xbf\xbd";
    }
    text.remove_prefix(n);
  }
  return repaired;
}

char32_t utf8_decode(std::string_view character) {
  const unsigned char lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead;
  char32_t value = lead & (0x7fu >> character.size());
  for (size_t i = 1; i < character.size(); ++i) {
    value = (value << 6) | (static_cast<unsigned char>(character[i]) & 0x3fu);
  }
  return value;
}

void utf8_append(std::string& text, char32_t c) {
  const auto push = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xc0 | (c >> 6));
    push(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    push(0xe0 | (c >> 12));
    push(0x80 | ((c >> 6) & 0x3f));
    push(0x80 | (c & 0x3f));
  } else {
    push(0xf0 | (c >> 18));
    push(0x80 | ((c >> 12) & 0x3f));
    push(0x80 | ((c >> 6) & 0x3f));
    push(0x80 | (c & 0x3f));
  }
}

}  // namespace smartkv
