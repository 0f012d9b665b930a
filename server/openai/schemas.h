// JSON Schemas (draft 2020-12) of the bodies that routes take. A FieldReader over one reads limits out of it and reads no
// field that it does not name; with field_table.h it makes /openapi.json. So the three cannot say different things.
#pragma once

#include <cstdint>

#include "server/openai/error.h"

namespace smartkv::openai {

enum class Body : uint8_t { kChat, kCompletions, kResponses, kTokenize, kDetokenize };

// {"type": "object", "properties": {...}, "required": [...], "additionalProperties": false}. Every member that is not
// required may also be null, which the schema leaves out.
const Json& body_schema(Body body);

// The same, said: members that are not required may be null.
Json with_nulls(Json schema);

}  // namespace smartkv::openai
