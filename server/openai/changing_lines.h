// Lines of system messages that change from one request to the next, such as a billing header or the current date.
// A prompt shares no prefix beyond such a line. The operator names these lines by patterns; they are dropped, or moved
// behind the conversation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/error.h"

namespace smartkv::openai {

// Numbers of lines that a request lost from its system messages.
struct LineChanges {
  int64_t moved = 0, dropped = 0;
};

// Adds the member `changing_lines` to the token details of a usage, if there were changes.
void add_line_changes(const LineChanges& changes, Json* details);

class LinePattern;
struct MatchMemory;

class ChangingLines {
 public:
  using Patterns = std::vector<std::shared_ptr<const LinePattern>>;

  ChangingLines() = default;  // changes nothing
  // Takes regular expressions in PCRE2's syntax. A line matches if an expression matches at its beginning. Throws
  // std::runtime_error that names the option `dropped_lines` or `moved_lines`, and the expression.
  ChangingLines(const std::vector<std::string>& dropped, const std::vector<std::string>& moved);

  // Takes the matching lines out of the system messages, which hold their content as a string. Appends the moved lines
  // to the last message that is not an assistant's. Compares 256 bytes of a line and 10,000 lines, in time in
  // proportion to these, whatever the patterns are. Throws ApiError.
  LineChanges apply(Json* messages) const;

 private:
  static bool matches(const Patterns& patterns, std::string_view line, MatchMemory* memory);
  bool take_lines(std::string* text, std::string* moved, LineChanges* changes, MatchMemory* memory) const;

  Patterns dropped_, moved_;
};

}  // namespace smartkv::openai
