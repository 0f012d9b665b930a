// Extracts tool calls from the text of an answer while it is generated.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/answer_piece.h"
#include "server/openai/json_end.h"
#include "server/openai/loose_calls.h"
#include "server/openai/named_calls.h"
#include "server/openai/tools.h"

namespace smartkv::openai {

// Parses one choice. Calls in the form of the model's template are returned piece by piece. Calls in another form
// (loose_calls.h) are returned when they are complete.
class ToolCallParser {
 public:
  explicit ToolCallParser(const ToolUse& tools);
  // Returns the pieces that are certain. Text that may turn out to begin a call is held back.
  std::vector<AnswerPiece> push(std::string_view text);
  std::vector<AnswerPiece> flush();  // called at the end of the answer; returns text that was held back
  std::vector<AnswerPiece> take(const GenerationEvent& event);  // push(), then flush() if the event is the last
  int64_t calls() const { return calls_; }                      // number of calls so far
  bool incomplete() const;                                      // whether the last call's arguments have not ended

 private:
  enum class State : uint8_t { kStart, kText, kHead, kArguments, kTail, kNamed };
  bool step(std::vector<AnswerPiece>* pieces);  // false if more text is needed
  bool find_start(std::vector<AnswerPiece>* pieces);
  bool find_in_text(std::vector<AnswerPiece>* pieces);
  bool begin_marked(size_t at, std::vector<AnswerPiece>* pieces);
  bool read_named(std::vector<AnswerPiece>* pieces);
  void add_loose(const std::vector<LooseCall>& calls, size_t start, size_t end, std::vector<AnswerPiece>* pieces);
  bool read_head(std::vector<AnswerPiece>* pieces);
  bool read_arguments(std::vector<AnswerPiece>* pieces);
  bool read_tail();
  void add_text(size_t bytes, std::vector<AnswerPiece>* pieces);

  ToolForm form_;
  std::string_view mark_;                 // begins calls in a text; "" in forms without one
  size_t first_word_ = 0;                 // bytes of mark_ before white space; they tell that calls begin
  std::optional<NamedCallReader> named_;  // set for named forms
  bool parallel_, constrained_;
  std::vector<std::string> bare_;  // names of functions whose arguments can only be {}
  LooseCallReader loose_;
  State state_ = State::kStart;
  // held_: text that is not returned yet. opening_: the text before the head that is being read; it is returned as text
  // if that turns out not to be a call.
  std::string held_, opening_;
  bool line_start_ = true;  // whether held_ begins a line, apart from blanks
  int64_t calls_ = 0;
  JsonEnd json_;  // of the arguments
};

}  // namespace smartkv::openai
