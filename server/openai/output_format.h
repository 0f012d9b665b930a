// What an output must look like, in the words of OpenAI (response_format), llama.cpp (grammar, json_schema) and vLLM
// (structured_outputs, guided_*): one grammar.
#pragma once

#include <string>

#include "engine/sampling/ebnf.h"
#include "engine/sampling/json_schema.h"
#include "server/openai/field_reader.h"

namespace smartkv::openai {

struct OutputFormat {
  EbnfGrammar rules;
  std::string root;   // the expression for the output, by the rules; empty: any text, or `text`
  std::string text;   // a whole grammar that the client wrote
  std::string field;  // that asked for it, for errors; empty: none did

  std::string grammar() const { return root.empty() ? text : rules.text(root); }  // empty: any text
};

// Throws ApiError: for what is no grammar, for a keyword of a JSON schema that is not supported, and for more than one
// format in a request.
OutputFormat read_output_format(FieldReader& fields);

// The rules of a JSON schema that stands at `path` of the request; returns the expression for a value. Throws ApiError.
std::string add_schema(const Json& schema, const std::string& path, EbnfGrammar* grammar, Unsupported unsupported = Unsupported::kError);

}  // namespace smartkv::openai
