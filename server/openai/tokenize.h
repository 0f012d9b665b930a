// POST /tokenize and /detokenize, in the formats of vLLM and llama.cpp; GET /tokenizer_info.
#pragma once

#include <string_view>

#include "server/openai/api_request.h"

namespace smartkv::openai {

// {prompt, ...} or {messages, ...} -> {count, max_model_len, tokens}; {content, ...} -> {tokens}. Throws ApiError.
Json tokenize(std::string_view body, const ServedModel& model);
// {tokens} -> {prompt, content}. Throws ApiError.
Json detokenize(std::string_view body, const ServedModel& model);
// Returns {bos_token, eos_token} as they are written in a text, or null if the model has none. A client needs them to
// count tokens with /tokenize.
Json tokenizer_info(const Tokenizer& tokenizer);

}  // namespace smartkv::openai
