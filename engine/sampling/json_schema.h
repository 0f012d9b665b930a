// Converts JSON schemas to EBNF. Every text of the grammar is JSON that validates against the schema.
//
// The dialect is draft 2020-12, plus the different spellings of earlier drafts and OpenAPI 3.0. Supported keywords:
//  - type, enum, const (beside any other keyword), nullable, $ref (within the schema: by pointer, $anchor or $id),
//    anyOf, allOf, oneOf (if its options exclude each other);
//  - properties, required, additionalProperties, patternProperties (a single pattern, without properties, required or
//    propertyNames), propertyNames, minProperties, maxProperties;
//  - items, prefixItems, minItems, maxItems;
//  - minLength, maxLength, pattern, format;
//  - minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf (number_grammar.h lists the supported values).
//
// No grammar can express the following, so they only filter the values of `enum` and `const`: uniqueItems, other values
// of multipleOf, unknown formats, a format beside a pattern, and a maxLength of at least kFreeLength (string_grammar.h)
// beside a pattern or format.
//
// Keywords that JSON Schema does not define are annotations, as the standard demands. A keyword that it defines and
// that is not supported here is an error that names the keyword. So is a combination that the grammar could not
// enforce.
//
// The grammar may allow fewer texts than the schema where that is sound:
//  - Properties come in the schema's order.
//  - Properties that the schema does not name are allowed only if additionalProperties says so.
//  - Numbers have as many digits as readers preserve (number_grammar.h).
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// Selects how to treat a keyword that the grammar cannot enforce.
enum class Unsupported : uint8_t {
  kError,   // throw GrammarError
  kLeftOut  // ignore this keyword, but no other
};

// Adds the rules for a value that validates and returns the expression for it. Throws GrammarError, whose path leads to
// the keyword at fault. Throws TooLargeError (ebnf.h) even under kLeftOut.
std::string add_json_schema(const nlohmann::ordered_json& schema, EbnfGrammar* grammar,
                            Unsupported unsupported = Unsupported::kError);

// Returns the expression for the white space that add_json_schema() allows between the parts of a JSON text, which is
// at most 22 characters.
std::string json_space();

}  // namespace smartkv
