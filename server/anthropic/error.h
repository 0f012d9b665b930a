// Errors in the shape of Anthropic's API: {"type": "error", "error": {type, message}, "request_id"}. They have no field
// for the name of a parameter, so messages name it.
// Source: Anthropic API reference, "Errors".
#pragma once

#include "server/openai/error.h"

namespace smartkv::anthropic {

using openai::ApiError;
using openai::Json;

// Returns the status of an error in Anthropic's API, in which an overloaded server answers with 529 instead of 503.
int status_of(const ApiError& error);
Json error_json(const ApiError& error, const std::string& request_id);

// Turns a 429 of the engine, whose queue is full, into one that status_of() calls overloaded. Anthropic's 429 is about
// the limits of an API key only. Returns any other error unchanged.
ApiError overloaded(const ApiError& error);

// Returns the id of a request, "req_...": that of the message "msg_...", or a new one if `message_id` is empty.
std::string request_id(const std::string& message_id);

}  // namespace smartkv::anthropic
