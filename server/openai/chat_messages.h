// The messages of a chat request, checked, in the form that chat templates read.
#pragma once

#include "server/openai/field_reader.h"

namespace smartkv::openai {

// Content becomes one string, "developer" becomes "system", the arguments of tool calls become objects.
// Errors name the place: "messages[2].content[0].type".
Json read_messages(const Json& messages);

}  // namespace smartkv::openai
