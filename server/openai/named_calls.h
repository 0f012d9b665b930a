// Reads tool calls in which the function's name comes before the arguments (NamedForm), while they are generated.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/answer_piece.h"
#include "server/openai/json_end.h"
#include "server/openai/tools.h"

namespace smartkv::openai {

class NamedCallReader {
 public:
  enum class Result : uint8_t {
    kMore,   // the calls go on
    kEnded,  // the rest of the text is no call
    kText    // no call has begun: the text is unchanged
  };

  NamedCallReader(const NamedForm& form, const ToolUse& tools);

  // Reads calls from the beginning of `*text` and removes what it has read. Appends pieces that are certain. `*calls`
  // is the number of calls of the answer so far. After kMore, the next call must pass the rest with more at its end.
  Result read(std::string* text, int64_t* calls, std::vector<AnswerPiece>* pieces);
  bool within_arguments() const { return state_ == State::kArguments; }
  bool begun() const { return state_ != State::kBegin; }  // whether the text behind it belongs to calls

 private:
  enum class State : uint8_t { kBegin, kArguments, kClose, kNext };
  enum class Step : uint8_t { kOn, kMore, kEnded, kText };
  Step begin(std::string* text, bool first, int64_t* calls, std::vector<AnswerPiece>* pieces);
  Step read_json(std::string* text, int64_t call, std::vector<AnswerPiece>* pieces);
  Step read_tag(std::string* text, int64_t call, std::vector<AnswerPiece>* pieces);
  Step read_gemma(std::string* text, int64_t call, std::vector<AnswerPiece>* pieces);
  Step close(std::string* text);
  Step next(std::string* text, int64_t* calls, std::vector<AnswerPiece>* pieces);
  Json value_of(const std::string& key, std::string_view text) const;

  const NamedForm* form_;
  std::map<std::string, Json> schemas_;  // of functions, by name
  State state_ = State::kBegin;
  std::string name_;  // of the current call
  bool any_ = false;  // whether it has an argument, or a byte of JSON
  JsonEnd json_;
};

// Returns whether the schema of an argument says plainly that it is a string. Such arguments are written without quotes
// where arguments stand in tags.
bool is_string_schema(const Json& schema);

// Returns a text in Gemma's notation of objects as JSON; "" if it is not in that notation.
std::string gemma_json(std::string_view text);

}  // namespace smartkv::openai
