// Patterns of tokenizers: regular expressions in Oniguruma's syntax, which the Hugging Face tokenizers library uses, or plain text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

// Immutable after construction; every method may be called from several threads at once.
class Pattern {
 public:
  // Compiles a regular expression. Throws TokenizerError naming the expression and the fault.
  explicit Pattern(const std::string& expression);
  // Makes a pattern that matches `text` itself.
  static Pattern literal(std::string text);

  struct Match {
    size_t begin, end;  // bytes; equal for an empty match
    bool operator==(const Match&) const = default;
  };
  // Replaces `*matches` by the matches in `text`, in order and without overlap. An empty match directly behind another match is
  // skipped. REQUIRES: `text` is valid UTF-8, unless is_literal(). Throws TokenizerError if matching takes more steps or memory than text needs.
  void find(std::string_view text, std::vector<Match>* matches) const;
  bool is_literal() const { return compiled_ == nullptr; }
  bool matches_in(std::string_view text) const;  // somewhere
  // Returns `text` with `content` in place of each match.
  std::string replace(std::string_view text, std::string_view content) const;

 private:
  Pattern() = default;
  bool search(std::string_view text, size_t from, Match* match) const;

  std::string source_;              // the expression, or the plain text
  std::shared_ptr<void> compiled_;  // OnigRegex; nullptr: plain text
};

}  // namespace smartkv
