// Reads the format that an output must have and turns it into one grammar. The fields are those of OpenAI
// (response_format), llama.cpp (grammar, json_schema) and vLLM (structured_outputs, guided_*).
#pragma once

#include <string>

#include "engine/sampling/ebnf.h"
#include "engine/sampling/json_schema.h"
#include "server/openai/field_reader.h"

namespace smartkv::openai {

struct OutputFormat {
  EbnfGrammar rules;
  // The expression for the output, which uses `rules`. Empty if `text` is set or any text is allowed.
  std::string root;
  std::string text;   // a whole grammar that the client wrote, or empty
  std::string field;  // the field that asked for the format, for errors; empty if there is none

  // Returns the grammar as EBNF text, or "" if any text is allowed.
  std::string grammar() const { return root.empty() ? text : rules.text(root); }
};

// Reads the format of a request. Throws ApiError for an invalid grammar, for an unsupported keyword of a JSON schema,
// and for more than one format.
OutputFormat read_output_format(FieldReader& fields);

// Adds the rules of the JSON schema at `path` of the request to the grammar. Returns the expression for a value. Throws
// ApiError.
std::string add_schema(const Json& schema, const std::string& path, EbnfGrammar* grammar,
                       Unsupported unsupported = Unsupported::kError);

}  // namespace smartkv::openai
