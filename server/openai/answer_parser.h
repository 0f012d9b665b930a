// Splits the text of a chat answer while it is generated: thinking, text and tool calls.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/answer_piece.h"
#include "server/openai/api_request.h"
#include "server/openai/harmony_reader.h"
#include "server/openai/tool_call_parser.h"

namespace smartkv::openai {

// Parses one choice. The result does not depend on how the text was cut into events.
class AnswerParser {
 public:
  explicit AnswerParser(const ApiRequest& request);
  // Returns the pieces that are certain. Text that may turn out to begin a mark is held back until the last event.
  std::vector<AnswerPiece> take(const GenerationEvent& event);
  int64_t calls() const;    // number of calls so far
  bool incomplete() const;  // whether the last call's arguments have not ended

 private:
  enum class State : uint8_t { kStart, kThinking, kBehind, kAnswer };
  bool step(std::vector<AnswerPiece>* pieces);  // false if more text is needed
  bool find_thinking();
  bool read_thinking(std::vector<AnswerPiece>* pieces);
  void add_thinking(size_t bytes, std::vector<AnswerPiece>* pieces);
  void add_answer(std::string_view text, std::vector<AnswerPiece>* pieces);
  void flush(bool cut, std::vector<AnswerPiece>* pieces);  // cut: the answer has reached a limit of tokens

  std::optional<HarmonyReader> harmony_;  // set if the model writes channels; the rest is then unused
  std::string open_, close_;              // marks of the thinking
  State state_ = State::kAnswer;
  bool thought_ = false;  // whether some of the thinking was returned
  std::string held_;      // text that is not returned yet
  std::optional<ToolCallParser> tools_;
};

}  // namespace smartkv::openai
