// Builds grammars as text, in the EBNF dialect that engine/sampling/constraint.h compiles. Rules with equal bodies
// become one rule.
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

// The input cannot be made into a grammar. `path` is the place of the fault in the JSON schema, such as
// "properties.age.multipleOf". It is empty for the whole input.
class GrammarError : public std::runtime_error {
 public:
  GrammarError(std::string where, const std::string& message) : std::runtime_error(message), path(std::move(where)) {}
  std::string path;
};

// No value validates against the schema.
class NoValueError : public GrammarError {
  using GrammarError::GrammarError;
};

// The grammar, or the input that it is made from, is too large.
class TooLargeError : public GrammarError {
  using GrammarError::GrammarError;
};

// Returns make(). Puts `path` in front of the path of its GrammarError, unless that is a TooLargeError.
template <typename Make>
auto at_path(const std::string& path, const Make& make) {
  try {
    return make();
  } catch (const TooLargeError&) {
    throw;
  } catch (GrammarError& error) {
    error.path.insert(0, path);
    throw;
  }
}

// A grammar under construction. Functions that add rules throw TooLargeError beyond kMostBytes of rules.
class EbnfGrammar {
 public:
  static constexpr size_t kMostBytes = size_t{1} << 20;
  // Limit of spend() for one grammar. A step takes about 0.2 us: visiting one value of a JSON schema, or 16 bytes of
  // text. A schema of 100 kB takes some tens of thousands of steps.
  static constexpr int64_t kMostSteps = 2'000'000;

  // Counts steps of the conversion. Throws TooLargeError once there are more than kMostSteps.
  void spend(int64_t steps);
  // Returns the name of a rule with this body, which may be an existing rule.
  std::string add(const std::string& body);
  // Returns the name of a rule that refers to itself. `body` makes the rule's body from its name.
  std::string recursive(const std::function<std::string(const std::string& name)>& body);
  // Returns a name that a later define() gives a body.
  std::string reserve();
  void define(const std::string& name, const std::string& body);
  // Returns the whole grammar. `root` is the expression of the output.
  std::string text(const std::string& root) const;

 private:
  int64_t next_ = 0, steps_ = 0;
  size_t bytes_ = 0;  // bytes of rules_
  std::map<std::string, std::string> by_body_;
  std::vector<std::pair<std::string, std::string>> rules_;
};

// Returns `text` as a literal, quotes included.
std::string ebnf_literal(std::string_view text);
// Returns an expression for any one of these expressions. REQUIRES: there is at least one.
std::string ebnf_either(const std::vector<std::string>& expressions);
// Returns an expression for any one of these texts, each matched in full.
std::string ebnf_choice(const std::vector<std::string>& texts);

// A set of code points, as ranges [first, last].
using CodePoints = std::vector<std::pair<uint32_t, uint32_t>>;
constexpr uint32_t kLastCodePoint = 0x10ffff;

CodePoints complement(CodePoints set);
// Returns `set` without the code points in `removed`.
CodePoints without(const CodePoints& set, CodePoints removed);
// Returns the set as a character class, "[...]". REQUIRES: the set is not empty.
std::string ebnf_class(const CodePoints& set);

}  // namespace smartkv
