// Takes the calls out of an answer's text as it comes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/tools.h"

namespace smartkv::openai {

// A piece of an answer: text, or the beginning of a call (which has a name), or more of its arguments.
struct AnswerPiece {
  std::string text;
  int64_t call = -1;      // index of the call; -1: text
  std::string name;       // of the call's first piece
  std::string arguments;  // JSON text, as it is
};

class ToolCallParser {
 public:
  explicit ToolCallParser(ToolForm form) : form_(form) {}
  // What is now known; text that may turn out to begin a call is held back.
  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> flush();  // at the end of the answer: what was held back is text
  std::vector<AnswerPiece> take(const GenerationEvent& event);  // push(), and flush() where the event is the last
  int64_t calls() const { return calls_; }

 private:
  enum class State : uint8_t { kStart, kText, kHead, kArguments, kTail };
  bool step(std::vector<AnswerPiece>* pieces);  // false: more text is needed
  bool find_start(std::vector<AnswerPiece>* pieces);
  bool read_head(std::vector<AnswerPiece>* pieces);
  bool read_arguments(std::vector<AnswerPiece>* pieces);
  bool read_tail();
  void add_text(size_t bytes, std::vector<AnswerPiece>* pieces);

  ToolForm form_;
  State state_ = State::kStart;
  std::string held_, opening_;  // opening_: of the call whose head is read, in case it is none
  int64_t calls_ = 0;
  int depth_ = 0;  // of braces in the arguments
  bool in_string_ = false, escaped_ = false;
};

}  // namespace smartkv::openai
