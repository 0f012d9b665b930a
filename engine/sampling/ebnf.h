// Grammars as text: rules in the EBNF dialect that engine/sampling/constraint.h compiles. Rules that read the same are
// one rule.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smartkv {

// What cannot be made into a grammar. `path`: where in the JSON schema, "properties.age.multipleOf"; empty: the whole.
class GrammarError : public std::runtime_error {
 public:
  GrammarError(std::string where, const std::string& message) : std::runtime_error(message), path(std::move(where)) {}
  std::string path;
};

// No value validates.
class NoValueError : public GrammarError {
  using GrammarError::GrammarError;
};

// The grammar, or what it is made of, is too large.
class TooLargeError : public GrammarError {
  using GrammarError::GrammarError;
};

// Throws TooLargeError for more than 1 MiB of rules.
class EbnfGrammar {
 public:
  static constexpr size_t kMostBytes = size_t{1} << 20;
  // Of all that is converted into one grammar, in units of some 0.2 us: values of a JSON schema that are looked at, and 16 bytes
  // of text each. A schema of 100 kB takes some ten thousands.
  static constexpr int64_t kMostSteps = 2'000'000;

  // Counts steps; throws TooLargeError once they are more than kMostSteps.
  void spend(int64_t steps);
  // The name of a rule with this body: a new one, or one that there is.
  std::string add(const std::string& body);
  // A rule that refers to itself; `body` makes its body of its name.
  std::string recursive(const std::function<std::string(const std::string& name)>& body);
  // A name whose body follows by define().
  std::string reserve();
  void define(const std::string& name, const std::string& body);
  // The whole grammar; `root`: what the output is.
  std::string text(const std::string& root) const;

 private:
  int64_t next_ = 0, steps_ = 0;
  size_t bytes_ = 0;  // of rules_
  std::map<std::string, std::string> by_body_;
  std::vector<std::pair<std::string, std::string>> rules_;
};

// `text` as a literal, quotes included.
std::string ebnf_literal(std::string_view text);
// One of these expressions; there is at least one.
std::string ebnf_either(const std::vector<std::string>& expressions);
// One of these texts, in full.
std::string ebnf_choice(const std::vector<std::string>& texts);

// Code points, as ranges [first, last].
using CodePoints = std::vector<std::pair<uint32_t, uint32_t>>;
constexpr uint32_t kLastCodePoint = 0x10ffff;

CodePoints complement(CodePoints set);
CodePoints without(const CodePoints& set, CodePoints removed);
// A class of characters, "[...]"; the set is not empty.
std::string ebnf_class(const CodePoints& set);

}  // namespace smartkv
