// A parsed request of /v1/completions or /v1/chat/completions, and the parsing of fields that both endpoints have.
#pragma once

#include <string>
#include <vector>

#include "server/openai/changing_lines.h"
#include "server/openai/field_reader.h"
#include "server/openai/tools.h"

namespace smartkv::openai {

// The served model, as far as parsing needs it.
struct ServedModel {
  const Engine& engine;
  std::vector<std::string> names;  // responses report the first name; the others are aliases
  Json sampling = Json::object();  // default values of sampling fields, by field name
  int64_t max_prompts = 256;       // limit for one request; more prompts than the queue holds could never be served
  ChangingLines changing_lines = {};
  std::string signing_key = {};  // key of the signatures of thinking (server/anthropic/thinking_signature.h)
};

// A checked request of either endpoint.
struct ApiRequest {
  bool chat = false;
  std::string id;                              // "chatcmpl-..." or "cmpl-..."
  std::string model;                           // the name that responses report
  std::vector<GenerationRequest> generations;  // one per prompt
  std::vector<std::string> echo;  // one text per prompt if a completion request asked for `echo`; else empty
  bool stream = false;
  // From stream_options: usage in a last chunk, usage so far in every chunk, the drafts of each chunk (draft_text.h).
  bool include_usage = false;
  bool continuous_usage = false;
  bool include_drafts = false;
  std::string format_field;      // the field that the grammar of the generations comes from
  std::optional<ToolUse> tools;  // chat only: the tools whose calls are extracted from the answer
  LineChanges line_changes;      // chat only: lines that were taken out of system messages
  bool channels = false;         // chat only: whether the model writes Harmony's channels
};

// Parse the JSON text of a request; read_chat() takes the parsed JSON. All three throw ApiError.
ApiRequest parse_completion(std::string_view body, const ServedModel& model);
ApiRequest parse_chat(std::string_view body, const ServedModel& model);
ApiRequest read_chat(const Json& body, const ServedModel& model);

// The steps that chat, completions and responses share. All but make_id() throw ApiError.
Json parse_body(std::string_view body);
inline constexpr size_t kIdCharacters = 24;
std::string make_id(std::string_view prefix);  // returns `prefix` and so many random characters, a-z and 0-9
void read_model(FieldReader& fields, const ServedModel& model, ApiRequest* request);
void read_streaming(FieldReader& fields, ApiRequest* request);
// Reads sampling, stop conditions and the extensions. Token ids are checked against the vocabulary.
void read_generation(FieldReader& fields, const ServedModel& model, GenerationRequest* request);
// Returns a limit of tokens: at least `least`, or -1 for as many as the context has room for. An absent field is the
// default of its schema, or -1 if that has none.
int64_t read_max_tokens(FieldReader& fields, std::string_view key, int64_t least = 1);
std::vector<TokenId> read_token_ids(const Json& array, const std::string& path, const Tokenizer& tokenizer);
// Refuse a prompt that cannot fit the context (400, context_length_exceeded) before work is spent on it. For a text,
// the smallest number of tokens that it can have decides.
void check_text_fits(std::string_view text, const std::string& param, const Engine& engine);
void check_tokens_fit(int64_t tokens, const std::string& param, const Engine& engine);

}  // namespace smartkv::openai
