#include "server/commands/terminal_text.h"

#include <unistd.h>

#include <cstdlib>

namespace smartkv {

bool writes_to_terminal() { return ::isatty(STDOUT_FILENO) != 0; }

bool writes_colours() {
  const char* const refused = std::getenv("NO_COLOR");
  return writes_to_terminal() && (refused == nullptr || *refused == '\0');
}

void TerminalText::begin(char introducer) {
  switch (introducer) {
    case '[': state_ = State::kControl; break;
    case 'P':
    case 'X':
    case ']':
    case '^':
    case '_': state_ = State::kString; break;
    default: state_ = introducer >= 0x20 && introducer < 0x30 ? State::kEscape : State::kText;
  }
}

void TerminalText::take(char byte, std::string* text) {
  constexpr char kEscapeByte = '\033', kBell = '\a', kDelete = 0x7f;
  if (byte == kEscapeByte) {
    state_ = State::kEscape;
  } else if (byte == '\n') {
    state_ = State::kText;
    *text += byte;
  } else if (state_ == State::kText) {
    const bool control = (byte >= 0 && byte < 0x20 && byte != '\t') || byte == kDelete;
    if (!control) *text += byte;
  } else if (state_ == State::kEscape) {
    begin(byte);
  } else if (state_ == State::kControl ? byte >= 0x40 && byte < kDelete : byte == kBell) {
    state_ = State::kText;
  }
}

std::string TerminalText::clean(std::string_view piece) {
  std::string text;
  for (const char byte : piece) {
    if (c1_) {
      c1_ = false;
      const auto second = static_cast<unsigned char>(byte);
      if (second >= 0x80 && second < 0xa0) {  // U+0080 to U+009F stand for ESC and the byte second - 0x40
        begin(static_cast<char>(second - 0x40));
        continue;
      }
      take('\xc2', &text);
    } else if (byte == '\xc2') {
      c1_ = true;
      continue;
    }
    take(byte, &text);
  }
  return text;
}

}  // namespace smartkv
