// The fields of /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages. A row has everything that is
// said about a field: which bodies have it, its JSON schema with range and default, its flags on the command line, a
// description. A FieldReader takes limits and defaults from it and reads no field that it does not name. /openapi.json,
// --help and docs/reference/api.md are made from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/field_reader.h"

namespace smartkv::openai {

enum class Body : uint8_t { kChat, kCompletions, kResponses, kTokenize, kDetokenize, kMessages, kCountTokens };

enum class FieldUse : uint8_t {
  kHonoured,  // supported; read by the parser of its endpoint
  kIdle,      // accepted, and without effect on the answer
  kNeutral,   // accepted only at values that ask for nothing; any other value is a 400
};

struct FieldRow {
  std::string_view names;  // one name, or several with the same properties, separated by commas
  FieldUse use;
  std::vector<Body> bodies;     // bodies that have the field
  Json schema;                  // a neutral field's is {"enum": [values...]}, or {"type": "null"}
  std::string help = {};        // for docs/reference/api.md, and for --help if there are flags
  std::string_view flags = {};  // of generate and chat

  bool is_of(Body body) const;  // whether `body` has the field
};

const std::vector<FieldRow>& field_table();

std::vector<std::string> field_names(const FieldRow& row);  // returns the row's names, one by one

// Returns the JSON schema (draft 2020-12) of a body: {"type": "object", "properties": {...}, "required": [...],
// "additionalProperties": false}. Every member that is not required may also be null, although the schema does not say
// so.
const Json& body_schema(Body body);
Json with_nulls(Json schema);  // returns the schema with null allowed for every member that is not required

// Reads the idle and neutral fields of a body, except best_of. Throws ApiError.
void read_table_fields(FieldReader& fields, Body body);

}  // namespace smartkv::openai
