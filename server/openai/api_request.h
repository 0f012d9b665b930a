// A parsed request of /v1/completions or /v1/chat/completions, and the fields that both have.
#pragma once

#include <string>
#include <vector>

#include "server/openai/field_reader.h"
#include "server/openai/tools.h"

namespace smartkv::openai {

// What parsing needs to know of the served model.
struct ServedModel {
  const Engine& engine;
  std::vector<std::string> names;  // the first one is reported; the others are aliases
  Json sampling = Json::object();  // defaults of sampling fields, by their names
  int64_t max_prompts = 256;       // of one request: more than the queue holds could never be served
};

struct ApiRequest {
  bool chat = false;
  std::string id;     // "chatcmpl-..." or "cmpl-..."
  std::string model;  // as responses report it
  std::vector<GenerationRequest> generations;  // one per prompt
  std::vector<std::string> echo;               // one text per prompt, with completions' echo; else empty
  bool stream = false;
  bool include_usage = false;  // stream_options
  bool continuous_usage = false;  // usage so far in every chunk
  bool include_drafts = false;    // what was drafted of each chunk
  std::string format_field;    // the field that gave the generations their grammar
  std::optional<ToolUse> tools;  // chat: whose calls are taken out of the text
};

// Both throw ApiError. `body` is the request's JSON text.
ApiRequest parse_completion(std::string_view body, const ServedModel& model);
ApiRequest parse_chat(std::string_view body, const ServedModel& model);
ApiRequest read_chat(const Json& body, const ServedModel& model);

// The shared steps of the two.
Json parse_body(std::string_view body);
std::string make_id(std::string_view prefix);
void read_model(FieldReader& fields, const ServedModel& model, ApiRequest* request);
void read_streaming(FieldReader& fields, ApiRequest* request);
// Sampling, stop conditions and the extensions; token ids are checked against the vocabulary.
void read_generation(FieldReader& fields, const ServedModel& model, GenerationRequest* request);
// -1 for all that there is room for.
int64_t read_max_tokens(FieldReader& fields, std::string_view key, int64_t fallback, int64_t least);
std::vector<TokenId> read_token_ids(const Json& array, const std::string& path, const Tokenizer& tokenizer);
// Both refuse a prompt that cannot fit the context (400, context_length_exceeded) before work is spent on it: a text by
// the fewest tokens that its bytes can make.
void check_text_fits(std::string_view text, const std::string& param, const Engine& engine);
void check_tokens_fit(int64_t tokens, const std::string& param, const Engine& engine);

}  // namespace smartkv::openai
