// JSON Schemas (draft 2020-12) of the bodies that routes take. A FieldReader over one reads limits out of it and reads no
// field that it does not name; with field_table.h it makes /openapi.json. So the three cannot say different things.
#pragma once

#include <array>

#include "server/openai/error.h"

namespace smartkv::openai {

enum class Body : uint8_t { kChat, kCompletions, kResponses, kTokenize, kDetokenize };

// Fields of /v1/responses that mean what they mean to /v1/chat/completions.
inline constexpr std::array<const char*, 22> kSharedWithResponses = {
    "model", "stream", "temperature", "top_p", "parallel_tool_calls", "metadata", "user", "safety_identifier", "prompt_cache_key",
    "service_tier", "store", "seed", "stop", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "min_tokens", "kv_cache", "speculative", "cache_salt"};

// {"type": "object", "properties": {...}, "required": [...], "additionalProperties": false}. Every member that is not
// required may also be null, which the schema leaves out.
const Json& body_schema(Body body);

// The same, said: members that are not required may be null.
Json with_nulls(Json schema);

}  // namespace smartkv::openai
