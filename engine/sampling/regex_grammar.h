// Regular expressions as EBNF. The syntax is ECMAScript's, less what no context-free grammar says directly: assertions
// (but ^ and $ at the ends), back references, flags.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// How a text's characters are written: as they are, or inside a JSON string.
enum class TextForm : uint8_t { kPlain, kJsonString };

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
constexpr size_t kMostRegexBytes = size_t{1} << 16;
// Larger counts of repetitions are refused.
constexpr int64_t kMostRepetitions = 100'000;

struct RegexGrammar {
  std::string ebnf;                                // of one text, quotes not included
  int64_t min_length = 0, max_length = kUnbounded;  // in code points
};

// Of the texts that match from end to end; with `search`, of those that hold a match (JSON schema's `pattern`).
// Throws GrammarError with an empty path.
RegexGrammar regex_grammar(std::string_view regex, TextForm form, bool search);

// Any one character of the set, as it is written. Throws GrammarError if none can be.
std::string characters(const CodePoints& set, TextForm form);
// The characters of a JSON string that need no escape, and any one escape; of surrogates only pairs.
const CodePoints& plain_json_characters();
std::string json_escape_ebnf();

}  // namespace smartkv
