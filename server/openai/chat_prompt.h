// From messages to the model's prompt, through its chat template.
#pragma once

#include "server/openai/field_reader.h"

namespace smartkv::openai {

// Reads messages, tools, tool_choice, add_generation_prompt and chat_template_kwargs; returns the prompt as text.
std::string read_chat_prompt(FieldReader& fields, const Engine& engine);

// The tokens of such a text: the template has written the special ones.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const std::string& prompt);

}  // namespace smartkv::openai
