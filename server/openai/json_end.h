// Finds the end of a JSON object or array in text that arrives in pieces.
#pragma once

#include <cstdint>
#include <string_view>

namespace smartkv::openai {

class JsonEnd {
 public:
  // Returns how many bytes of `text`, which goes on behind the text so far, belong to the value.
  size_t take(std::string_view text) {
    size_t n = 0;
    while (n < text.size() && !ended_) {
      const char c = text[n++];
      if (in_string_) {
        if (c == '"' && !escaped_) in_string_ = false;
        escaped_ = c == '\\' && !escaped_;
      } else if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        ++depth_;
      } else if (c == '}' || c == ']') {
        ended_ = --depth_ == 0;
      }
    }
    return n;
  }
  bool ended() const { return ended_; }

 private:
  int64_t depth_ = 0;  // of brackets
  bool in_string_ = false, escaped_ = false, ended_ = false;
};

}  // namespace smartkv::openai
