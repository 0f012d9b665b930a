// What makes a request invalid, whatever the engine is doing at the moment.
#pragma once

#include "engine/engine.h"

namespace smartkv {

struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  int64_t max_sequences = 0;
};

// Throws a RequestError (kInvalid or kContextLength) that names the field, what is allowed and what was found.
void check_request(const GenerationRequest& request, const RequestLimits& limits);

}  // namespace smartkv
