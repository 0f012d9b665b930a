// JSON schemas as EBNF: every text of the grammar is JSON that validates. Draft 2020-12, and what earlier drafts and OpenAPI 3.0
// write differently, of which it takes
//   type, enum, const (beside any other keyword), nullable, $ref (within the schema: by pointer, $anchor or $id), anyOf, allOf,
//   oneOf (of options that exclude each other);
//   properties, required, additionalProperties, patternProperties (one, alone), propertyNames, minProperties,
//   maxProperties; items, prefixItems, minItems, maxItems; minLength, maxLength, pattern, format; minimum, maximum,
//   exclusiveMinimum, exclusiveMaximum, multipleOf (number_grammar.h says which).
// No grammar says these, which therefore bind `enum` and `const` alone: uniqueItems, other values of multipleOf, unknown formats,
// a format beside a pattern, and a maxLength from kFreeLength beside a pattern or format. Keywords that JSON Schema does not define
// are annotations, as it demands. A keyword that it does define, and a combination that the grammar could not keep, is an error
// that names it. Where a schema leaves it open, the texts are fewer than it allows: properties come in the schema's order, others
// than those that it names only if additionalProperties says so, and numbers have as many digits as readers keep
// (number_grammar.h).
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// What becomes of a keyword that the grammar cannot keep: an error, or it is left out, and no other.
enum class Unsupported : uint8_t { kError, kLeftOut };

// Adds the rules of a value that validates; returns the expression for it. Throws GrammarError, whose path leads to the
// keyword; TooLargeError (ebnf.h) in any case.
std::string add_json_schema(const nlohmann::ordered_json& schema, EbnfGrammar* grammar, Unsupported unsupported = Unsupported::kError);

// White space between the parts of a JSON text, as add_json_schema() allows it: at most 22 characters.
std::string json_space();

}  // namespace smartkv
