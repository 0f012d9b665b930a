// Input of a conversation: lines edited on a terminal, with libedit, or read from a pipe.
#pragma once

#include <memory>
#include <string>

namespace smartkv {

class LineEditor {
 public:
  enum class Input { kText, kInterrupt, kEnd };

  // Edits lines if standard input is a terminal; otherwise it only reads them.
  explicit LineEditor(std::string prompt);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Reads up to the next Enter or, from a pipe, up to the next line break. Returns kInterrupt for Ctrl-C, which drops
  // the typed text, and kEnd for Ctrl-D or the end of the pipe. If the terminal marks pastes (bracketed paste), a paste
  // may have any length and contain line breaks.
  Input read(std::string* text);

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;  // null for a pipe
};

}  // namespace smartkv
