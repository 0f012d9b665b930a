// A compiled regular expression that cuts text into pieces (PCRE2, Unicode, JIT).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

class SplitPattern {
 public:
  // `pattern` as the Hugging Face tokenizers library takes it: \s is Unicode's White_Space there, and here.
  // Throws TokenizerError naming the pattern and the fault.
  explicit SplitPattern(const std::string& pattern);

  // Appends the matches, and what lies between them, in order. `text`: valid UTF-8; the pieces are views into it.
  void split(std::string_view text, std::vector<std::string_view>* pieces) const;
  bool matches_in(std::string_view text) const;  // somewhere in valid UTF-8

 private:
  std::shared_ptr<void> code_;  // pcre2_code
};

}  // namespace smartkv
