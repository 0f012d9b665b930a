// The thinking of a chat model: how its template marks it, and whether a prompt begins it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/openai/field_reader.h"

namespace smartkv::openai {

// The marks of a chat template, found by rendering a conversation with thinking.
struct ReasoningForm {
  std::string open, close;       // the marks
  std::string closing, between;  // texts that end the thinking, mark included, and that come before the answer
  bool channels = false;         // Harmony's channels (harmony_reader.h)
};

// Returns nullopt if the model's template knows no thinking.
std::optional<ReasoningForm> reasoning_form(const Engine& engine);

// Returns the thinking of an answer to a prompt that ends with `tail`: the rendered prompt, or the beginning of the
// answer if the prompt contains one (`continues`). Returns nullopt if the prompt has ended the thinking.
std::optional<Thinking> thinking_after(const ReasoningForm& form, std::string_view tail, bool continues,
                                       const Tokenizer& tokenizer);

// Returns the special tokens of the vocabulary that occur in `text`.
std::vector<TokenId> special_tokens_in(std::string_view text, const Tokenizer& tokenizer);

// Reads reasoning_effort. Returns the template's variables for it, null if the field is absent. `form` is the model's,
// or null. Throws ApiError for an effort of a model that does not think.
Json read_effort(FieldReader& fields, const ReasoningForm* form);

// Reads the limit of thinking tokens. Returns -1 if there is none. Throws ApiError.
int64_t read_thinking_budget(FieldReader& fields);

}  // namespace smartkv::openai
