#include "engine/text/byte_level.h"

#include <array>

#include "engine/text/utf8.h"

namespace smartkv {
namespace {

// The stand-in of a byte that is printable in Latin-1 is that character. The other bytes have U+0100, U+0101, ... in
// order.
struct StandIns {
  std::array<int, 512> bytes;          // by character; -1 if it is not a stand-in
  std::array<std::string, 256> texts;  // by byte

  StandIns() {
    bytes.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const int character = printable ? byte : next++;
      bytes[static_cast<size_t>(character)] = byte;
      utf8_append(texts[static_cast<size_t>(byte)], static_cast<char32_t>(character));
    }
  }
};

const StandIns& stand_ins() {
  static const StandIns table;
  return table;
}

}  // namespace

int byte_of_stand_in(char32_t character) {
  return character < stand_ins().bytes.size() ? stand_ins().bytes[character] : -1;
}

std::string to_stand_ins(std::string_view text) {
  const auto& texts = stand_ins().texts;
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (const char byte : text) out += texts[static_cast<unsigned char>(byte)];
  return out;
}

std::string from_stand_ins(std::string_view text) {
  std::string bytes;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t length = utf8_length(rest);
    const int byte = length == 0 ? -1 : byte_of_stand_in(utf8_decode(rest.substr(0, length)));
    if (byte < 0) return std::string(text);
    bytes += static_cast<char>(byte);
    rest.remove_prefix(length);
  }
  return bytes;
}

}  // namespace smartkv
