// Input of a conversation: lines edited on a terminal, by libedit, or read from a pipe.
#pragma once

#include <memory>
#include <string>

namespace smartkv {

class LineEditor {
 public:
  enum class Input { kText, kInterrupt, kEnd };

  // Edits lines where standard input is a terminal; else reads them as they come.
  explicit LineEditor(std::string prompt);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Reads what ends with the next Enter or, from a pipe, with the next line break. A paste may have any length, and line breaks,
  // where the terminal marks pastes (bracketed paste). kInterrupt: Ctrl-C, which drops what was typed. kEnd: Ctrl-D, or the pipe's
  // end.
  Input read(std::string* text);

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;  // null: a pipe
};

}  // namespace smartkv
