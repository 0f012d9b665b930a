// Patterns of tokenizers: plain text, or regular expressions in Oniguruma's syntax, which the Hugging Face tokenizers
// library uses.
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
    size_t begin, end;  // Offsets in bytes. They are equal for an empty match.
    bool operator==(const Match&) const = default;
  };
  // Replaces `*matches` by the matches in `text`, in order and without overlap. Skips an empty match directly after
  // another match. Throws TokenizerError if matching exceeds a limit of steps or memory, which ordinary text does not.
  // REQUIRES: `text` is valid UTF-8, or is_literal().
  void find(std::string_view text, std::vector<Match>* matches) const;
  bool is_literal() const { return compiled_ == nullptr; }
  bool matches_in(std::string_view text) const;  // The pattern matches somewhere in `text`.
  // Returns `text` with each match replaced by `content`.
  std::string replace(std::string_view text, std::string_view content) const;

 private:
  Pattern() = default;
  bool search(std::string_view text, size_t from, Match* match) const;

  std::string source_;              // The expression, or the plain text.
  std::shared_ptr<void> compiled_;  // An OnigRegex. Null for plain text.
};

}  // namespace smartkv
