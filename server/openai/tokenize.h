// POST /tokenize and /detokenize, in the shapes of vLLM and llama.cpp; GET /tokenizer_info.
#pragma once

#include <string_view>

#include "server/openai/api_request.h"

namespace smartkv::openai {

// {prompt | messages, ...} -> {count, max_model_len, tokens}, or {content, ...} -> {tokens}. Throws ApiError.
Json tokenize(std::string_view body, const ServedModel& model);
// {tokens} -> {prompt, content}. Throws ApiError.
Json detokenize(std::string_view body, const ServedModel& model);
// {bos_token, eos_token} as they are written in a text, null where the model has none: what a client needs to count
// tokens with /tokenize.
Json tokenizer_info(const Tokenizer& tokenizer);

}  // namespace smartkv::openai
