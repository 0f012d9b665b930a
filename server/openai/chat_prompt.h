// Turns messages into the model's prompt, by its chat template.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/openai/api_request.h"

namespace smartkv::openai {

struct ChatPrompt {
  std::string text;
  std::vector<size_t> message_ends;  // where the text of each message ends, in bytes of `text`
  std::optional<ToolUse> tools;      // the tools that the answer may call
  std::optional<Thinking> thinking;  // absent if the answer does not think
  LineChanges line_changes;          // lines that were taken out of system messages
  bool channels = false;             // whether the model writes Harmony's channels
};

// Reads messages, tools, reasoning_effort, add_generation_prompt, continue_final_message and chat_template_kwargs. The
// answer continues an assistant's message at the end, unless add_generation_prompt or continue_final_message says
// otherwise. Throws ApiError.
ChatPrompt read_chat_prompt(FieldReader& fields, const ServedModel& model);

// Returns the variables of a chat template. `tools` is null if there are none.
Json template_context(const Engine& engine, const Json& messages, const Json& tools, bool add_generation_prompt);

// Returns the tokens at which the messages begin: the first at 0, each other one where the text before it ends.
std::vector<int64_t> message_starts(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
                                    const std::vector<size_t>& message_ends);

// Returns the tokens of a prompt's text. It adds no special tokens, because the template has written them. Throws
// ApiError for an empty prompt.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const std::string& prompt);

}  // namespace smartkv::openai
