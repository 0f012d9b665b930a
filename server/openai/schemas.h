// JSON Schemas (draft 2020-12) of request bodies. They and field_table.h make /openapi.json. A FieldReader takes its
// limits from the schema and reads no field that the schema does not name, so the parser and the documentation agree.
#pragma once

#include <cstdint>

#include "server/openai/error.h"

namespace smartkv::openai {

enum class Body : uint8_t { kChat, kCompletions, kResponses, kTokenize, kDetokenize };

// Returns {"type": "object", "properties": {...}, "required": [...], "additionalProperties": false}. Every member that
// is not required may also be null, although the schema does not say so.
const Json& body_schema(Body body);

// Returns the schema with null allowed for every member that is not required.
Json with_nulls(Json schema);

}  // namespace smartkv::openai
