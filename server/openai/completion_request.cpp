// POST /v1/completions.
#include <algorithm>

#include "server/openai/api_request.h"
#include "server/openai/field_table.h"
#include "server/openai/output_format.h"

namespace smartkv::openai {

namespace {

struct Prompt {
  std::vector<TokenId> tokens;
  std::string text;  // the text that `echo` returns
};

Prompt text_prompt(const Json& value, const Engine& engine, bool add_special) {
  std::string text = value.get<std::string>();
  check_text_fits(text, "prompt", engine);
  return {engine.tokenizer().encode(text, {.add_special = add_special}), std::move(text)};
}

Prompt token_prompt(const Json& value, const std::string& path, const Engine& engine) {
  check_tokens_fit(static_cast<int64_t>(value.size()), "prompt", engine);
  const Tokenizer& tokenizer = engine.tokenizer();
  std::vector<TokenId> tokens = read_token_ids(value, path, tokenizer);
  return {tokens, tokenizer.decode(tokens, false)};
}

// Reads a string, an array of token ids, or an array of strings and arrays of token ids.
std::vector<Prompt> read_prompts(const Json& value, const ServedModel& model, bool add_special) {
  static constexpr const char* kExpected =
      "a string, an array of token ids, or an array of strings and arrays of token ids";
  const Engine& engine = model.engine;
  if (value.is_string()) return {text_prompt(value, engine, add_special)};
  if (!value.is_array()) throw wrong_type("prompt", kExpected, value);
  if (value.empty()) throw invalid_request("prompt", "'prompt': expected at least one prompt, found an empty array");
  if (value[0].is_number()) return {token_prompt(value, "prompt", engine)};
  if (static_cast<int64_t>(value.size()) > model.max_prompts) {
    throw invalid_request("prompt", "'prompt': expected at most " + std::to_string(model.max_prompts) +
                                        " prompts, found " + std::to_string(value.size()));
  }
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string path = "prompt[" + std::to_string(i) + "]";
    if (value[i].is_string()) {
      prompts.push_back(text_prompt(value[i], engine, add_special));
    } else if (value[i].is_array()) {
      prompts.push_back(token_prompt(value[i], path, engine));
    } else {
      throw wrong_type(path, "a string or an array of token ids", value[i]);
    }
  }
  return prompts;
}

}  // namespace

ApiRequest parse_completion(std::string_view body, const ServedModel& model) {
  const Json json = parse_body(body);
  FieldReader fields(json, &body_schema(Body::kCompletions));
  ApiRequest request;
  request.id = make_id("cmpl-");
  read_model(fields, model, &request);
  read_streaming(fields, &request);

  GenerationRequest generation;
  generation.id = request.id;
  read_generation(fields, model, &generation);
  read_table_fields(fields, Body::kCompletions);
  OutputFormat format = read_output_format(fields);
  generation.grammar = format.grammar();
  request.format_field = std::move(format.field);
  const bool echo = fields.boolean("echo");
  // A request that only scores its prompt (echo with logprobs) has a max_tokens of 0.
  const int64_t max_tokens = read_max_tokens(fields, "max_tokens", echo ? 0 : 1);
  generation.logprobs = static_cast<int32_t>(fields.integer("logprobs", -1));
  if (echo) generation.prompt_logprobs = generation.logprobs;
  fields.only_default("best_of", {1, generation.n});
  const bool add_special = fields.boolean("add_special_tokens");

  const Json* prompt = fields.find("prompt");
  fields.finish();
  if (prompt == nullptr) throw invalid_request("prompt", "'prompt' is required");
  for (Prompt& one : read_prompts(*prompt, model, add_special)) {
    if (one.tokens.empty()) throw invalid_request("prompt", "'prompt': expected at least one token, found none");
    const int64_t room = model.engine.context_length() - static_cast<int64_t>(one.tokens.size());
    generation.max_tokens = max_tokens < 0 ? std::max<int64_t>(room, 1) : max_tokens;
    generation.prompt = std::move(one.tokens);
    generation.first_choice = static_cast<int32_t>(request.generations.size()) * generation.n;
    request.generations.push_back(generation);
    if (echo) request.echo.push_back(std::move(one.text));
  }
  return request;
}

}  // namespace smartkv::openai
