// What may reach a terminal of the text that a model wrote.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace smartkv {

// Whether standard output is a terminal.
bool writes_to_terminal();
// Whether standard output is a terminal whose user has not refused colours: NO_COLOR is unset or empty (no-color.org).
bool writes_colours();

// Removes escape sequences and control characters but line breaks and tabs from text that comes in pieces, so that nothing a model
// writes moves the cursor, changes colours or sends the terminal's answers to a shell. A sequence that nothing ends, ends with its
// line.
class TerminalText {
 public:
  // Returns the piece as it may be written; UTF-8 stays whole.
  std::string clean(std::string_view piece);

 private:
  enum class State : uint8_t {
    kText,
    kEscape,   // after ESC
    kControl,  // in a control sequence: ESC [ ... a letter
    kString,   // in a string that BEL or ESC \ ends: a title, a link, the clipboard
  };
  void take(char byte, std::string* text);
  // After the introducer of a sequence, the second byte of ESC [ and its like, or the same as one C1 control.
  void begin(char introducer);

  State state_ = State::kText;
  bool c1_ = false;  // 0xC2 came: a C1 control, or a character of two bytes
};

}  // namespace smartkv
