// Checks the messages of a chat request and converts them to the form that chat templates read.
#pragma once

#include "server/openai/field_reader.h"

namespace smartkv::openai {

// Returns the messages for the chat template: content becomes one string, "developer" becomes "system", and the
// arguments of tool calls become objects. Throws ApiError that names the place: "messages[2].content[0].type".
Json read_messages(const Json& messages);

}  // namespace smartkv::openai
