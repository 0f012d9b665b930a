// Regular expressions as EBNF. The syntax is that of ECMAScript, without assertions (except ^ and $ at the ends), back
// references and flags, which a context-free grammar cannot express directly.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// How the characters of a text are written: as they are, or inside a JSON string.
enum class TextForm : uint8_t { kPlain, kJsonString };

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr size_t kMostRegexBytes = size_t{1} << 16;
// Most repetitions of a quantifier. Larger counts are errors.
constexpr int64_t kMostRepetitions = 100'000;

struct RegexGrammar {
  std::string ebnf;                                 // expression of one text, without quotes around it
  int64_t min_length = 0, max_length = kUnbounded;  // length of the texts in code points
};

// Returns the grammar of the texts that match from end to end. With `search` it is the grammar of the texts that
// contain a match, like JSON Schema's `pattern`. Throws GrammarError with an empty path.
RegexGrammar regex_grammar(std::string_view regex, TextForm form, bool search);

// Returns the code points of a text. REQUIRES: it is UTF-8.
std::vector<uint32_t> code_points(std::string_view text);
// Returns an expression for any one character of the set, as `form` writes it. A large set in a JSON string leaves out
// the characters that would need an escape. Throws GrammarError if no character can be written.
std::string characters(const CodePoints& set, TextForm form);
// Returns the characters of a JSON string that need no escape.
const CodePoints& plain_json_characters();
// Returns an expression for any one escape of a JSON string. Escaped surrogates come in pairs only.
std::string json_escape_ebnf();

}  // namespace smartkv
