// Takes the calls out of an answer's text as it comes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/loose_calls.h"
#include "server/openai/tools.h"

namespace smartkv::openai {

// A piece of an answer: text, or the beginning of a call (which has a name), or more of its arguments.
struct AnswerPiece {
  std::string text;
  int64_t call = -1;      // index of the call; -1: text
  std::string name;       // of the call's first piece
  std::string arguments;  // JSON text, as it is
};

// Calls in the form of the model's template come piece by piece. Calls in another form (loose_calls.h) come when they are whole.
class ToolCallParser {
 public:
  explicit ToolCallParser(const ToolUse& tools);
  // What is now known; text that may turn out to begin a call is held back.
  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> flush();  // at the end of the answer: what was held back is text
  std::vector<AnswerPiece> take(const GenerationEvent& event);  // push(), and flush() where the event is the last
  int64_t calls() const { return calls_; }
  bool incomplete() const { return state_ == State::kArguments; }  // the last call's arguments have not ended

 private:
  enum class State : uint8_t { kStart, kText, kHead, kArguments, kTail };
  bool step(std::vector<AnswerPiece>* pieces);  // false: more text is needed
  bool find_start(std::vector<AnswerPiece>* pieces);
  bool find_in_text(std::vector<AnswerPiece>* pieces);
  bool begin_tagged(size_t at, std::vector<AnswerPiece>* pieces);
  void add_loose(const std::vector<LooseCall>& calls, size_t start, size_t end, std::vector<AnswerPiece>* pieces);
  bool read_head(std::vector<AnswerPiece>* pieces);
  bool read_arguments(std::vector<AnswerPiece>* pieces);
  bool read_tail();
  void add_text(size_t bytes, std::vector<AnswerPiece>* pieces);
  size_t behind_text(size_t end) const;  // of held_[0, end), without the white space at its end

  ToolForm form_;
  bool parallel_, constrained_;
  std::vector<std::string> bare_;  // the functions whose arguments can only be {}
  LooseCallReader loose_;
  State state_ = State::kStart;
  std::string held_, opening_;  // opening_: of the call whose head is read, in case it is none
  bool line_start_ = true;      // held_ begins behind nothing but blanks of its line
  int64_t calls_ = 0;
  int depth_ = 0;  // of braces in the arguments
  bool in_string_ = false, escaped_ = false;
};

}  // namespace smartkv::openai
