// GET /openapi.json: what this server answers, as OpenAPI 3.1. Bodies are those of schemas.h.
#pragma once

#include "server/openai/error.h"

namespace smartkv::openai {

const Json& openapi();

}  // namespace smartkv::openai
