// GET /openapi.json: the server's API as an OpenAPI 3.1 document. The schemas of request bodies come from schemas.h.
#pragma once

#include "server/openai/error.h"

namespace smartkv::openai {

const Json& openapi();

}  // namespace smartkv::openai
