// JSON schemas as EBNF: every text of the grammar is JSON that validates. Draft 2020-12, of which it takes
//   type, enum, const, $ref (within the schema), anyOf, allOf, oneOf (of options that exclude each other);
//   properties, required, additionalProperties, patternProperties (one, alone), propertyNames, minProperties,
//   maxProperties; items, prefixItems, minItems, maxItems; minLength, maxLength, pattern, format; minimum, maximum,
//   exclusiveMinimum, exclusiveMaximum; annotations.
// Any other keyword, and a combination that the grammar could not keep, is an error that names it. Where a schema leaves
// it open, the texts are fewer than it allows: properties come in the schema's order, others than those that it names
// only if additionalProperties says so, and numbers have as many digits as readers keep (number_grammar.h).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/sampling/ebnf.h"

namespace smartkv {

// Adds the rules of a value that validates; returns the expression for it. Throws GrammarError, whose path leads to the
// keyword.
std::string add_json_schema(const nlohmann::ordered_json& schema, EbnfGrammar* grammar);

// White space between the parts of a JSON text, as add_json_schema() allows it.
std::string json_space();

}  // namespace smartkv
