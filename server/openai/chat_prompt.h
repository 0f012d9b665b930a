// From messages to the model's prompt, through its chat template.
#pragma once

#include "server/openai/field_reader.h"

namespace smartkv::openai {

// Reads messages, tools, tool_choice, add_generation_prompt and chat_template_kwargs; returns the prompt's tokens.
std::vector<TokenId> read_chat_prompt(FieldReader& fields, const Engine& engine);

// Renders checked messages. `variables`: further members of the template's context, or null.
std::vector<TokenId> encode_chat(const Engine& engine, const Json& messages, const Json& tools,
                                 bool add_generation_prompt, const Json& variables);

}  // namespace smartkv::openai
