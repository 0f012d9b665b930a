// The `usage` and `timings` members of responses.
#pragma once

#include "server/openai/error.h"

namespace smartkv::openai {

Json usage_json(const RequestUsage& usage);
Json timings_json(const RequestUsage& usage);  // in milliseconds and tokens per second

}  // namespace smartkv::openai
