#include "server/openai/field_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <utility>

#include "engine/sampling/sampling_fields.h"

namespace smartkv::openai {

namespace {

Json operator""_s(const char* text, size_t size) { return Json::parse(text, text + size); }

Json flag(bool fallback) { return {{"type", "boolean"}, {"default", fallback}}; }
Json only(Json::initializer_list_t values) { return {{"enum", Json::array(values)}}; }

Json number(double value) { return std::floor(value) == value ? Json(static_cast<int64_t>(value)) : Json(value); }

FieldRow sampling_row(const SamplingField& field) {
  Json schema = {{"type", field.is_whole() ? "integer" : "number"}};
  schema[field.above_min ? "exclusiveMinimum" : "minimum"] = field.min;
  schema["maximum"] = field.max;
  schema["default"] = number(field.of(SamplingParams()));
  return {
      field.name,        FieldUse::kHonoured,     {Body::kChat, Body::kCompletions, Body::kResponses, Body::kMessages},
      std::move(schema), std::string(field.help), field.flags};
}

std::vector<FieldRow> make_table() {
  using enum FieldUse;
  const std::vector<Body> chat = {Body::kChat}, completions = {Body::kCompletions}, responses = {Body::kResponses},
                          texts = {Body::kChat, Body::kCompletions}, turns = {Body::kChat, Body::kResponses},
                          open_ai = {Body::kChat, Body::kCompletions, Body::kResponses}, messages = {Body::kMessages},
                          prompts = {Body::kMessages, Body::kCountTokens},
                          all = {Body::kChat, Body::kCompletions, Body::kResponses, Body::kMessages};
  const Json string = {{"type", "string"}}, object = {{"type", "object"}}, boolean = {{"type", "boolean"}},
             null = {{"type", "null"}}, spec = R"({"type": ["string", "object"]})"_s,
             limit = R"({"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]})"_s,
             choice = R"({"type": "array", "minItems": 1, "maxItems": 4096, "items": {"type": "string"}})"_s,
             grammar = R"({"type": "string", "minLength": 1})"_s;
  const std::string room = "; -1 for as many as the context has room for";
  std::vector<FieldRow> table = {
      {"model",
       kHonoured,
       {Body::kChat, Body::kCompletions, Body::kResponses, Body::kMessages, Body::kCountTokens},
       string,
       "One of the names of the served model, which is also the default"},
      {"messages", kHonoured, chat, R"({"type": "array", "minItems": 1, "items": {
         "type": "object", "required": ["role"], "additionalProperties": false, "properties": {
           "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
           "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {
             "type": "object", "required": ["type", "text"], "additionalProperties": false, "properties": {
               "type": {"const": "text"}, "text": {"type": "string"}, "cache_control": {"type": "object"}}}}]},
           "name": {"type": "string"}, "tool_call_id": {"type": "string"}, "id": {"type": "string"},
           "cache_control": {"type": "object"}, "tool_calls": {"type": "array", "items": {
             "type": "object", "required": ["id", "type", "function"], "additionalProperties": false, "properties": {
               "index": {"type": "integer", "minimum": 0}, "id": {"type": "string"}, "type": {"const": "function"},
               "function": {"type": "object", "required": ["name", "arguments"], "additionalProperties": false,
                            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}}}}},
           "refusal": {"type": "null"}, "audio": {"type": "null"}, "function_call": {"type": "null"},
           "annotations": {"type": "array", "maxItems": 0}, "provider_specific_fields": {"type": "object"},
           "reasoning_content": {"type": "string"}, "reasoning": {"type": "string"},
           "reasoning_details": {"type": "array"}, "thinking_blocks": {"type": "array"}}}})"_s,
       "Text only; tool calls and results; `reasoning_content` reaches the template"},
      {"messages", kHonoured, prompts, R"({"type": "array", "minItems": 1, "items": {
         "type": "object", "required": ["role", "content"], "additionalProperties": false, "properties": {
           "role": {"enum": ["user", "assistant", "system"]},
           "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {
             "type": "object", "required": ["type"], "properties": {
               "type": {"enum": ["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]}}}}]}}}})"_s,
       "A text or blocks: text, `tool_use`, `tool_result` and thinking ([messages](#the-messages-api))"},
      {"system", kHonoured, prompts, R"({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object",
       "required": ["type", "text"], "additionalProperties": false, "properties": {"type": {"const": "text"},
       "text": {"type": "string"}, "cache_control": {"type": "object"}, "citations": {"type": "array",
       "maxItems": 0}}}}]})"_s,
       "A text or text blocks before the messages"},
      {"prompt", kHonoured, completions, R"({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1,
       "items": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "array",
       "items": {"type": "integer", "minimum": 0}}]}}]})"_s,
       "A text, token ids, or a list of both"},
      {"input", kHonoured, responses, R"({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object",
       "properties": {"type": {"enum": ["message", "function_call", "function_call_output", "reasoning"]}}}}]})"_s,
       "A text, or a list of messages, function calls, their outputs and reasoning; text only"},
      {"instructions", kHonoured, responses, string, "A system message before `input`"},
      {"max_tokens", kHonoured, chat, limit, "Limit of tokens of an answer" + room},
      {"max_tokens", kHonoured, completions, R"({"type": "integer", "minimum": -1, "default": 16})"_s,
       "Limit of tokens of an answer" + room + "; 0 only with echo", "-n,--max-tokens"},
      {"max_tokens", kHonoured, messages, R"({"type": "integer", "minimum": 1})"_s, "Limit of tokens of an answer"},
      {"max_completion_tokens", kHonoured, chat, limit, "The newer name of `max_tokens`"},
      {"max_output_tokens", kHonoured, responses, limit, "Limit of tokens of an answer" + room},
      {"n", kHonoured, texts, R"({"type": "integer", "minimum": 1, "maximum": 128, "default": 1})"_s,
       "Answers to each prompt"},
  };
  for (const SamplingField& field : kSamplingFields) table.push_back(sampling_row(field));
  const std::vector<FieldRow> others = {
      {"seed", kHonoured, all, R"({"type": "integer", "minimum": -9223372036854775808,
       "maximum": 18446744073709551615})"_s,
       "Seed that makes sampling repeatable", "--seed"},
      // A request with a stop string holds back text that could begin one, so their length is bounded.
      {"stop", kHonoured, open_ai,
       R"({"anyOf": [{"type": "string", "maxLength": 1024}, {"type": "array", "maxItems": 16,
       "items": {"type": "string", "maxLength": 1024}}]})"_s,
       "Text that ends the answer", "--stop"},
      // Every entry of stop_token_ids and logit_bias is checked for every token. OpenAI's clients send a handful.
      {"stop_sequences", kHonoured, messages, R"({"type": "array", "maxItems": 16, "items": {"type": "string",
       "maxLength": 1024}})"_s,
       "Texts that end the answer"},
      {"stop_token_ids", kHonoured, texts, R"({"type": "array", "maxItems": 1000, "items": {"type": "integer",
       "minimum": 0}})"_s,
       "Tokens that end the answer"},
      {"min_tokens", kHonoured, all, R"({"type": "integer", "minimum": 0, "default": 0})"_s,
       "Tokens before which nothing ends the answer, except a grammar"},
      {"ignore_eos", kHonoured, all, flag(false), "Continue after the end-of-sequence token", "--ignore-eos"},
      {"skip_special_tokens", kHonoured, texts, flag(true), "Leaves special tokens out of the text"},
      {"logit_bias", kHonoured, texts, R"({"type": "object", "maxProperties": 1000,
       "propertyNames": {"pattern": "^[0-9]+$"}, "additionalProperties": {"type": ["number", "null"], "minimum": -100,
       "maximum": 100}})"_s,
       "Added to logits, by token id; -100 to 100"},
      {"logprobs", kHonoured, chat, flag(false), "Log probabilities of the answer's tokens"},
      {"top_logprobs", kHonoured, chat, R"({"type": "integer", "minimum": 0, "maximum": 20})"_s,
       "Likeliest tokens to report at each position; needs `logprobs`"},
      {"logprobs", kHonoured, completions, R"({"type": "integer", "minimum": 0, "maximum": 20})"_s,
       "Log probabilities of the answer's tokens and of so many likeliest ones"},
      {"echo", kHonoured, completions, flag(false),
       "Begins the answer with the prompt, and its log probabilities with `logprobs`"},
      {"stream", kHonoured, all, flag(false), "Sends the answer in parts, as server-sent events"},
      {"stream_options", kHonoured, texts, R"({"type": "object", "additionalProperties": false,
       "properties": {"include_usage": {"type": "boolean"}, "continuous_usage_stats": {"type": "boolean"},
       "include_drafts": {"type": "boolean"}, "include_obfuscation": {"type": "boolean"}}})"_s,
       "`include_usage`, `continuous_usage_stats`, `include_drafts` ([drafts](#drafts-in-a-stream))"},
      {"stream_options", kHonoured, responses, R"({"type": "object", "additionalProperties": false,
       "properties": {"include_obfuscation": {"type": "boolean"}}})"_s,
       "`include_obfuscation` has no effect: chunks are not padded"},
      {"response_format", kHonoured, texts, R"({"type": "object", "required": ["type"], "additionalProperties": false,
       "properties": {"type": {"enum": ["text", "json_object", "json_schema"]},
       "schema": {"description": "A JSON schema; with json_object"}, "json_schema": {"type": "object",
       "additionalProperties": false, "properties": {"name": {"type": "string"}, "description": {"type": "string"},
       "strict": {"type": "boolean"}, "schema": {"type": "object"}}}}})"_s,
       "`text`, `json_object`, `json_schema`"},
      {"text", kHonoured, responses, R"({"type": "object", "additionalProperties": false,
       "properties": {"format": {"type": "object"}, "verbosity": {"const": "medium"}}})"_s,
       "`format`: as `response_format`; `verbosity`: only `medium`"},
      {"json_schema", kHonoured, texts, R"({"description": "A JSON schema"})"_s,
       "A JSON schema. This and the next five rows: one of them, or `response_format`"},
      {"grammar, guided_grammar", kHonoured, texts, grammar, "EBNF"},
      {"regex, guided_regex", kHonoured, texts, string, "A regular expression for the whole answer"},
      {"choice, guided_choice", kHonoured, texts, choice, "Possible answers"},
      {"guided_json", kHonoured, texts, R"({"description": "A JSON schema, or its text"})"_s,
       "As `json_schema`, or its text"},
      {"structured_outputs", kHonoured, texts, R"({"type": "object", "additionalProperties": false,
       "properties": {"json": {"description": "A JSON schema, or its text"}, "regex": {"type": "string"},
       "choice": {"type": "array", "minItems": 1, "maxItems": 4096, "items": {"type": "string"}},
       "grammar": {"type": "string", "minLength": 1}, "json_object": {"type": "boolean"},
       "disable_fallback": {"type": "boolean"}, "disable_any_whitespace": {"const": false},
       "disable_additional_properties": {"const": true}}})"_s,
       "`json`, `regex`, `choice`, `grammar` or `json_object`"},
      {"reasoning", kHonoured, responses, R"({"type": "object", "additionalProperties": false,
       "properties": {"effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]},
       "summary": {"type": "string"}, "generate_summary": {"type": "string"}}})"_s,
       "`effort`: as `reasoning_effort` of chat; `summary` has no effect: the reasoning itself is returned"},
      {"reasoning_effort", kHonoured, chat,
       R"({"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]})"_s,
       "How much the model thinks; passed to the template ([thinking](../use/reasoning.md))"},
      {"thinking_budget, thinking_token_budget, thinking_budget_tokens", kHonoured, turns,
       R"({"type": "integer", "minimum": 0})"_s,
       "Most tokens of thinking; then the server ends it and the answer begins"},
      {"include", kHonoured, responses, R"({"type": "array", "items": {"enum": ["reasoning.encrypted_content",
       "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
       "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs"]}})"_s,
       "`reasoning.encrypted_content` and other parts of items that this server never produces"},
      {"tools", kHonoured, chat, R"({"type": "array", "maxItems": 128, "items": {"type": "object", "required": ["type",
       "function"], "additionalProperties": false, "properties": {"type": {"const": "function"},
       "function": {"type": "object", "required": ["name"], "additionalProperties": false,
       "properties": {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"},
       "description": {"type": "string"}, "strict": {"type": "boolean"}, "parameters": {"type": "object"}}}}}})"_s,
       "Functions"},
      {"tools", kHonoured, responses, R"({"type": "array", "maxItems": 128, "items": {"type": "object",
       "required": ["type", "name"], "additionalProperties": false, "properties": {"type": {"const": "function"},
       "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}, "description": {"type": "string"},
       "strict": {"type": "boolean"}, "parameters": {"type": "object"}}}})"_s,
       "Functions"},
      {"tool_choice", kHonoured, chat, R"({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object",
       "required": ["type", "function"], "additionalProperties": false, "properties": {"type": {"const": "function"},
       "function": {"type": "object", "required": ["name"], "additionalProperties": false,
       "properties": {"name": {"type": "string"}}}}}]})"_s,
       "Whether functions are called, or which one"},
      {"tool_choice", kHonoured, responses, R"({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object",
       "required": ["type", "name"], "additionalProperties": false, "properties": {"type": {"const": "function"},
       "name": {"type": "string"}}}]})"_s,
       "Whether functions are called, or which one"},
      {"tools", kHonoured, prompts, R"({"type": "array", "maxItems": 128, "items": {"type": "object",
       "required": ["name", "input_schema"], "additionalProperties": false, "properties": {"type": {"const": "custom"},
       "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}, "description": {"type": "string"},
       "input_schema": {"type": "object"}, "strict": {"type": "boolean"}, "cache_control": {"type": "object"},
       "input_examples": {"type": "array", "items": {"type": "object"}}, "eager_input_streaming": {"type": "boolean"},
       "defer_loading": {"const": false}, "allowed_callers": {"const": ["direct"]}}}})"_s,
       "Functions; Anthropic's own tools are refused"},
      {"tool_choice", kHonoured, prompts, R"({"type": "object", "required": ["type"], "additionalProperties": false,
       "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}, "name": {"type": "string"},
       "disable_parallel_tool_use": {"type": "boolean"}}})"_s,
       "Whether functions are called, or which one, and whether several"},
      {"thinking", kHonoured, prompts, R"({"type": "object", "required": ["type"], "additionalProperties": false,
       "properties": {"type": {"enum": ["enabled", "adaptive", "disabled"]},
       "budget_tokens": {"type": "integer", "minimum": 1024}, "display": {"enum": ["summarized", "omitted"]}}})"_s,
       "Whether the model thinks before it answers ([thinking](#thinking))"},
      {"output_config", kHonoured, prompts, R"({"type": "object", "additionalProperties": false, "properties": {
       "effort": {"enum": ["low", "medium", "high", "xhigh", "max"]}, "format": {"type": "object",
       "required": ["type", "schema"], "additionalProperties": false, "properties": {"type": {"const": "json_schema"},
       "schema": {"type": "object"}}}}})"_s,
       "`format`: a JSON schema for the answer; `effort`: of thinking, for models that think"},
      {"cache_control", kHonoured, prompts, R"({"type": "object", "required": ["type"], "additionalProperties": false,
       "properties": {"type": {"const": "ephemeral"}, "ttl": {"enum": ["5m", "1h"]}, "scope": {"type": "string"}}})"_s,
       "A mark at the end of the prompt, like those of its blocks ([caching](#caching))"},
      {"context_management", kHonoured, prompts, R"({"type": "object", "additionalProperties": false,
       "properties": {"edits": {"type": "array", "items": {"type": "object", "required": ["type"],
       "properties": {"type": {"const": "clear_thinking_20251015"}, "keep": {"const": "all"}}}}}})"_s,
       "Only the edit that keeps all thinking: this server never edits a conversation"},
      {"parallel_tool_calls", kHonoured, turns, flag(true), "Allows several calls in an answer"},
      {"add_generation_prompt", kHonoured, chat, boolean,
       "Ends the prompt with the head of an assistant's message ([messages](#messages))"},
      {"continue_final_message", kHonoured, chat, boolean, "Continues the last message ([messages](#messages))"},
      {"chat_template_kwargs",
       kHonoured,
       {Body::kChat, Body::kMessages, Body::kCountTokens},
       object,
       "Variables for the chat template"},
      {"add_special_tokens", kHonoured, completions, flag(true),
       "Begins the prompt with the model's first token, if it has one"},
      {"kv_cache", kHonoured, all, spec, "The [policy](policies.md); the server's default if absent"},
      {"speculative", kHonoured, all, spec, "The [method](../use/speculation.md); the server's default if absent"},
      {"cache_salt", kHonoured, all, string, "Prompts share prefixes only with prompts of the same salt"},
      {"prompt_cache_key", kHonoured, all, string,
       "Requests with the same key share what is learned about when their prefixes are used again"},
      {"retention", kHonoured, all, R"({"type": "object", "additionalProperties": false, "properties": {
       "priority": {"type": "integer", "minimum": 0, "maximum": 100, "default": 60},
       "ttl_seconds": {"type": "integer", "minimum": 1, "maximum": 31536000, "default": 300}}})"_s,
       "How long the stored prompt should stay ([retention](../use/retention.md))"},
      {"prompt_cache_retention", kHonoured, all, R"({"enum": ["in_memory", "in-memory", "24h"]})"_s,
       "`24h` is `retention` of priority 60 for a day; `in_memory` is the default"},
      {"store", kIdle, chat, boolean, "nothing is stored"},
      {"store", kHonoured, responses, flag(true),
       "Stores the response, if the operator allows it ([responses](#responses))"},
      {"previous_response_id", kHonoured, responses, string, "The stored response that this request continues"},
      {"background", kHonoured, responses, flag(false),
       "Answers at once; the response is read later, with GET ([responses](#responses))"},
      {"metadata", kIdle, open_ai, object},
      {"metadata", kIdle, messages, R"({"type": "object", "additionalProperties": false,
       "properties": {"user_id": {"type": "string"}}})"_s},
      {"user, safety_identifier", kIdle, open_ai, string},
      {"service_tier", kIdle, all, string},
      {"diagnostics", kIdle, messages, object},
      {"request_id", kIdle, texts, string},
      {"cache_prompt", kIdle, texts, boolean, "computed prompts are shared in any case"},
      {"container, inference_geo", kNeutral, messages, null},
      {"mcp_servers", kNeutral, prompts, only({Json::array()})},
      {"speed", kNeutral, prompts, only({"standard"})},
      {"conversation", kNeutral, responses, null, "use `previous_response_id`"},
      {"truncation", kNeutral, responses, only({"disabled"})},
      {"top_logprobs", kNeutral, responses, only({0})},
      {"prompt, max_tool_calls, context_management", kNeutral, responses, null},
      {"best_of", kNeutral, completions, R"({"type": "integer", "minimum": 1, "maximum": 128})"_s,
       "expected is the value of `n`, or 1"},
      {"suffix", kNeutral, completions, only({""})},
      {"audio, prediction, web_search_options", kNeutral, chat, null},
      {"modalities", kNeutral, chat, only({Json::array({"text"})})},
      {"verbosity", kNeutral, chat, only({"medium"})},
      {"functions", kNeutral, chat, only({Json::array()}), "use `tools`"},
      {"function_call", kNeutral, chat, only({"none"}), "use `tool_choice`"},
      {"guided_decoding_backend", kNeutral, texts, only({"auto", "xgrammar"})},
      {"use_beam_search, include_stop_str_in_output, return_tokens_as_token_ids", kNeutral, texts, only({false})},
      {"detokenize, spaces_between_special_tokens", kNeutral, texts, only({true})},
      {"length_penalty, typical_p", kNeutral, texts, only({1})},
      {"repeat_last_n", kNeutral, texts, only({-1}), "`repetition_penalty` looks at all tokens"},
      {"priority", kNeutral, texts, only({0})},
      {"bad_words, logits_processors, allowed_token_ids, truncate_prompt_tokens, prompt_logprobs", kNeutral, texts,
       only({Json::array()})},
  };
  table.insert(table.end(), others.begin(), others.end());
  return table;
}

constexpr const char* kTokenize = R"({
  "content": {"type": "string"}, "add_special": {"type": "boolean"}, "parse_special": {"type": "boolean"},
  "with_pieces": {"type": "boolean"}, "prompt": {"type": "string"}, "add_special_tokens": {"type": "boolean"},
  "return_token_strs": {"type": "boolean"}
})";

Json object_schema(Json properties, Json required) {
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", false}};
}

// Returns the schemas of all fields of a body, in the order of field_table().
Json table_properties(Body body) {
  Json properties = Json::object();
  for (const FieldRow& row : field_table()) {
    if (!row.is_of(body)) continue;
    for (const std::string& name : field_names(row)) properties[name] = row.schema;
  }
  return properties;
}

Json tokenize_properties() {
  Json properties = Json::parse(kTokenize);
  const Json chat = table_properties(Body::kChat);
  for (const char* name : {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "add_generation_prompt",
                           "continue_final_message", "chat_template_kwargs", "reasoning_effort"}) {
    properties[name] = chat.at(name);
  }
  return properties;
}

}  // namespace

bool FieldRow::is_of(Body body) const { return std::find(bodies.begin(), bodies.end(), body) != bodies.end(); }

const std::vector<FieldRow>& field_table() {
  static const std::vector<FieldRow> table = make_table();
  return table;
}

std::vector<std::string> field_names(const FieldRow& row) {
  std::vector<std::string> result;
  std::istringstream in{std::string(row.names)};
  for (std::string name; in >> name;) {
    if (name.ends_with(',')) name.pop_back();
    result.push_back(name);
  }
  return result;
}

const Json& body_schema(Body body) {
  static const std::array<Json, 7> schemas = {
      object_schema(table_properties(Body::kChat), {"messages"}),
      object_schema(table_properties(Body::kCompletions), {"prompt"}),
      object_schema(table_properties(Body::kResponses), {"input"}),
      object_schema(tokenize_properties(), Json::array()),
      object_schema(R"({"model": {"type": "string"},
                        "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}})"_s,
                    {"tokens"}),
      object_schema(table_properties(Body::kMessages), {"messages", "max_tokens"}),
      object_schema(table_properties(Body::kCountTokens), {"messages"})};
  return schemas[static_cast<size_t>(body)];
}

Json with_nulls(Json schema) {
  if (schema.contains("items")) schema["items"] = with_nulls(schema["items"]);
  if (schema.contains("anyOf")) {
    for (Json& one : schema["anyOf"]) one = with_nulls(one);
  }
  if (!schema.contains("properties")) return schema;
  const Json required = schema.value("required", Json::array());
  for (auto& [name, property] : schema["properties"].items()) {
    property = with_nulls(property);
    const bool optional = std::find(required.begin(), required.end(), name) == required.end();
    const bool takes_null = property.empty() || property.value("type", Json()) == "null";
    if (optional && !takes_null) property = {{"anyOf", Json::array({property, {{"type", "null"}}})}};
  }
  return schema;
}

void read_table_fields(FieldReader& fields, Body body) {
  for (const FieldRow& row : field_table()) {
    if (row.use == FieldUse::kHonoured || !row.is_of(body)) continue;
    const Json type = row.schema.value("type", Json());
    for (const std::string& name : field_names(row)) {
      if (name == "best_of") continue;  // its neutral value is n, so the parser of completions reads it
      if (row.use == FieldUse::kNeutral) {
        fields.only_default(name, row.schema.value("enum", Json::array()).get<std::vector<Json>>());
      } else if (type == "string") {
        fields.string(name);
      } else if (type == "boolean") {
        fields.boolean(name, false);
      } else {
        fields.object(name);
      }
    }
  }
}

}  // namespace smartkv::openai
