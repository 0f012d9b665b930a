// Calls that a model writes in a form of its own: JSON on a line of its own, alone or in a fenced block, as Qwen2.5-Coder does.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv::openai {

struct LooseCall {
  std::string name;
  std::string arguments;  // JSON text of an object, as the model wrote it
};

// Reads {"name": NAME, "arguments": {...}}, where "parameters" may stand for "arguments" and the two may stand in
// {"type": "function", "function": {...}}, or an array of such objects. Everything else is text, among it a call of a name that is
// not known.
class LooseCallReader {
 public:
  enum class Result { kMore, kText, kCalls };

  explicit LooseCallReader(std::vector<std::string> names) : names_(std::move(names)) {}

  // Whether calls, or a fenced block of nothing but calls, begin `text`, which may end anywhere; kMore: that is not known yet.
  // With kCalls, `*calls` are they and `*end` is where they end. One answer's text grows from call to call of this function.
  Result read(std::string_view text, std::vector<LooseCall>* calls, size_t* end);

 private:
  // Where a JSON value has been scanned to, so that a long one is scanned once.
  struct Scan {
    size_t start = 0, at = 0, depth = 0;
    bool in_string = false, escaped = false;
  };
  Result read_value(std::string_view text, size_t start, std::vector<LooseCall>* calls, size_t* end);
  Result could_be_call(std::string_view text) const;
  bool begins_name(std::string_view text) const;
  bool add_calls(std::string_view json, std::vector<LooseCall>* calls) const;

  std::vector<std::string> names_;
  Scan scan_;
};

}  // namespace smartkv::openai
