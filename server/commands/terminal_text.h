// Makes the text that a model wrote safe to print on a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace smartkv {

// Returns whether standard output is a terminal.
bool writes_to_terminal();
// Returns whether standard output is a terminal and the user has not refused colours: NO_COLOR is unset or empty
// (no-color.org).
bool writes_colours();

// Removes escape sequences and control characters, except line breaks and tabs, from text that arrives in pieces. So
// nothing that a model writes moves the cursor, changes colours or sends the terminal's answers to a shell. An escape
// sequence without an end is removed up to the end of its line.
class TerminalText {
 public:
  // Returns the part of the piece that is safe to print. UTF-8 characters stay whole.
  std::string clean(std::string_view piece);

 private:
  enum class State : uint8_t {
    kText,
    kEscape,   // after ESC
    kControl,  // in a control sequence: ESC [ ... and a letter
    kString,   // in a string that ends with BEL or ESC \, such as a title, a link, or text for the clipboard
  };
  void take(char byte, std::string* text);
  // Sets the state for an escape sequence. `introducer` is the byte after ESC; a C1 control stands for ESC and that
  // byte.
  void begin(char introducer);

  State state_ = State::kText;
  bool c1_ = false;  // the last byte was 0xC2, which begins a C1 control or another character of two bytes
};

}  // namespace smartkv
