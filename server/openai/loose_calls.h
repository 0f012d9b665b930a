// Reads tool calls that a model does not write in the form of its chat template: JSON that begins a line, alone or in a
// fenced block, or an array behind the word functools. Qwen2.5-Coder and Phi-4 write such calls.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv::openai {

inline constexpr std::string_view kBlanks = " \t\r\n";

// Returns the size of the first `end` bytes of a text without the white space at their end.
inline size_t without_blanks(std::string_view text, size_t end) {
  return end == 0 ? 0 : text.find_last_not_of(kBlanks, end - 1) + 1;
}

struct LooseCall {
  std::string name;
  std::string arguments;  // JSON text of an object, as the model wrote it
};

// Reads one call or an array of calls, also calls of Python functions (python_calls.h): a list in brackets, or a block
// fenced with ```tool_code. Otherwise a call is {"name": NAME, "arguments": {...}}. The key "parameters" may replace
// "arguments", and the object may be wrapped in {"type": "function", "function": {...}}. Everything else is text, even
// a call of an unknown function.
class LooseCallReader {
 public:
  enum class Result { kMore, kText, kCalls };

  explicit LooseCallReader(std::vector<std::string> names) : names_(std::move(names)) {}

  // Tells whether `text`, which may be cut anywhere, begins with calls or with a fenced block that holds nothing but
  // calls. Returns kMore if more text has to decide. With kCalls, sets `*calls`, and `*end` to the offset after them.
  // After kMore, the next call must pass the same text with more at its end.
  Result read(std::string_view text, std::vector<LooseCall>* calls, size_t* end);

 private:
  // How far a JSON value has been scanned, so that a long value is scanned only once.
  struct Scan {
    size_t start = 0, at = 0, depth = 0;
    bool in_string = false, escaped = false;
  };
  Result read_value(std::string_view text, size_t start, std::vector<LooseCall>* calls, size_t* end);
  Result could_be_call(std::string_view text) const;
  bool begins_name(std::string_view text) const;
  Result read_python(std::string_view text, size_t start, std::vector<LooseCall>* calls, size_t* end);
  bool add_calls(std::string_view json, std::vector<LooseCall>* calls) const;

  std::vector<std::string> names_;
  Scan scan_;
  size_t python_seen_ = 0;  // bytes of an unfinished Python call that were read
};

}  // namespace smartkv::openai
