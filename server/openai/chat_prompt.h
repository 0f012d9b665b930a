// From messages to the model's prompt, through its chat template.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/openai/field_reader.h"
#include "server/openai/tools.h"

namespace smartkv::openai {

struct ChatPrompt {
  std::string text;
  std::optional<ToolUse> tools;  // that the answer may call
};

// Reads messages, the tools, add_generation_prompt, continue_final_message and chat_template_kwargs. An assistant's
// message at the end is continued, unless add_generation_prompt or continue_final_message says otherwise.
ChatPrompt read_chat_prompt(FieldReader& fields, const Engine& engine);

// What a chat template reads. tools: null if there are none.
Json template_context(const Engine& engine, const Json& messages, const Json& tools, bool add_generation_prompt);

// The tokens of a prompt's text: the template has written the special ones.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const std::string& prompt);

}  // namespace smartkv::openai
