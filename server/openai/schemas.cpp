#include "server/openai/schemas.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "server/openai/field_table.h"

namespace smartkv::openai {

namespace {

// Schemas of honoured fields that chat and completions share.
constexpr const char* kHonoured = R"({
  "model": {"type": "string"},
  "stream": {"type": "boolean"},
  "n": {"type": "integer", "minimum": 1, "maximum": 128},
  "stop": {"anyOf": [{"type": "string", "maxLength": 1024},
                     {"type": "array", "maxItems": 16, "items": {"type": "string", "maxLength": 1024}}]},
  "seed": {"type": "integer", "minimum": -9223372036854775808, "maximum": 18446744073709551615},
  "temperature": {"type": "number", "minimum": 0, "maximum": 2},
  "top_p": {"type": "number", "minimum": 0, "maximum": 1},
  "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
  "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
  "logit_bias": {"type": "object", "maxProperties": 1000, "propertyNames": {"pattern": "^[0-9]+$"},
                 "additionalProperties": {"type": ["number", "null"], "minimum": -100, "maximum": 100}},
  "stream_options": {"type": "object", "additionalProperties": false, "properties": {
    "include_usage": {"type": "boolean"}, "continuous_usage_stats": {"type": "boolean"}, "include_drafts": {"type": "boolean"},
    "include_obfuscation": {"type": "boolean"}}},
  "response_format": {"type": "object", "required": ["type"], "additionalProperties": false, "properties": {
    "type": {"enum": ["text", "json_object", "json_schema"]},
    "schema": {"description": "A JSON schema; with json_object"},
    "json_schema": {"type": "object", "additionalProperties": false, "properties": {
      "name": {"type": "string"}, "description": {"type": "string"}, "strict": {"type": "boolean"}, "schema": {"type": "object"}}}}},
  "json_schema": {"description": "A JSON schema"},
  "grammar": {"type": "string", "minLength": 1, "description": "EBNF"},
  "regex": {"type": "string"},
  "choice": {"type": "array", "minItems": 1, "maxItems": 4096, "items": {"type": "string"}},
  "structured_outputs": {"type": "object", "additionalProperties": false, "properties": {
    "json": {"description": "A JSON schema, or its text"}, "regex": {"type": "string"},
    "choice": {"type": "array", "minItems": 1, "maxItems": 4096, "items": {"type": "string"}},
    "grammar": {"type": "string", "minLength": 1}, "json_object": {"type": "boolean"}, "disable_fallback": {"type": "boolean"},
    "disable_any_whitespace": {"const": false}, "disable_additional_properties": {"const": true}}},
  "guided_json": {"description": "A JSON schema, or its text"},
  "guided_regex": {"type": "string"},
  "guided_choice": {"type": "array", "minItems": 1, "maxItems": 4096, "items": {"type": "string"}},
  "guided_grammar": {"type": "string", "minLength": 1},
  "top_k": {"type": "integer", "minimum": -1, "maximum": 2147483647},
  "min_p": {"type": "number", "minimum": 0, "maximum": 1},
  "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
  "min_tokens": {"type": "integer", "minimum": 0},
  "ignore_eos": {"type": "boolean"},
  "stop_token_ids": {"type": "array", "maxItems": 1000, "items": {"type": "integer", "minimum": 0}},
  "skip_special_tokens": {"type": "boolean"},
  "kv_cache": {"type": ["string", "object"]},
  "speculative": {"type": ["string", "object"]},
  "cache_salt": {"type": "string"}
})";

constexpr const char* kChat = R"({
  "messages": {"type": "array", "minItems": 1, "items": {
    "type": "object", "required": ["role"], "additionalProperties": false, "properties": {
      "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
      "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {
        "type": "object", "required": ["type", "text"], "additionalProperties": false,
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}, "cache_control": {"type": "object"}}}}]},
      "name": {"type": "string"}, "tool_call_id": {"type": "string"}, "id": {"type": "string"}, "cache_control": {"type": "object"},
      "tool_calls": {"type": "array", "items": {
        "type": "object", "required": ["id", "type", "function"], "additionalProperties": false, "properties": {
          "index": {"type": "integer", "minimum": 0}, "id": {"type": "string"}, "type": {"const": "function"},
          "function": {"type": "object", "required": ["name", "arguments"], "additionalProperties": false,
                       "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}}}}}},
      "refusal": {"type": "null"}, "audio": {"type": "null"}, "function_call": {"type": "null"},
      "annotations": {"type": "array", "maxItems": 0}, "provider_specific_fields": {"type": "object"},
      "reasoning_content": {"type": "string"}, "reasoning": {"type": "string"},
      "reasoning_details": {"type": "array"}, "thinking_blocks": {"type": "array"}}}},
  "max_tokens": {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]},
  "max_completion_tokens": {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]},
  "logprobs": {"type": "boolean"},
  "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
  "tools": {"type": "array", "maxItems": 128, "items": {
    "type": "object", "required": ["type", "function"], "additionalProperties": false, "properties": {
      "type": {"const": "function"},
      "function": {"type": "object", "required": ["name"], "additionalProperties": false, "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": {"type": "string"},
        "strict": {"type": "boolean"}, "parameters": {"type": "object"}}}}}},
  "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {
    "type": "object", "required": ["type", "function"], "additionalProperties": false, "properties": {
      "type": {"const": "function"},
      "function": {"type": "object", "required": ["name"], "additionalProperties": false, "properties": {"name": {"type": "string"}}}}}]},
  "parallel_tool_calls": {"type": "boolean"},
  "add_generation_prompt": {"type": "boolean"},
  "continue_final_message": {"type": "boolean"},
  "chat_template_kwargs": {"type": "object"}
})";

constexpr const char* kCompletions = R"({
  "prompt": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {
    "anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]}}]},
  "max_tokens": {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 0}], "description": "0 only with echo"},
  "echo": {"type": "boolean"},
  "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
  "add_special_tokens": {"type": "boolean"},
  "best_of": {"type": "integer", "minimum": 1, "maximum": 128}
})";

// Schemas of honoured fields that chat does not have, or has in another form.
constexpr const char* kResponses = R"({
  "input": {"anyOf": [{"type": "string"}, {"type": "array", "items": {
    "type": "object", "properties": {"type": {"enum": ["message", "function_call", "function_call_output", "reasoning"]}}}}]},
  "instructions": {"type": "string"},
  "max_output_tokens": {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1}]},
  "tools": {"type": "array", "maxItems": 128, "items": {
    "type": "object", "required": ["type", "name"], "additionalProperties": false, "properties": {
      "type": {"const": "function"}, "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": {"type": "string"},
      "strict": {"type": "boolean"}, "parameters": {"type": "object"}}}},
  "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {
    "type": "object", "required": ["type", "name"], "additionalProperties": false,
    "properties": {"type": {"const": "function"}, "name": {"type": "string"}}}]},
  "text": {"type": "object", "additionalProperties": false,
           "properties": {"format": {"type": "object"}, "verbosity": {"const": "medium"}}},
  "reasoning": {"type": "object", "additionalProperties": false, "properties": {
    "effort": {"const": "none"}, "summary": {"type": "string"}, "generate_summary": {"type": "string"}}},
  "include": {"type": "array", "items": {"enum": [
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs"]}},
  "stream_options": {"type": "object", "additionalProperties": false, "properties": {"include_obfuscation": {"type": "boolean"}}}
})";

constexpr const char* kTokenize = R"({
  "content": {"type": "string"}, "add_special": {"type": "boolean"}, "parse_special": {"type": "boolean"}, "with_pieces": {"type": "boolean"},
  "prompt": {"type": "string"}, "add_special_tokens": {"type": "boolean"}, "return_token_strs": {"type": "boolean"}
})";

Json object_schema(Json properties, Json required) {
  return {{"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}, {"additionalProperties", false}};
}

// Returns the schemas of honoured fields, by name.
const Json& honoured(Body body) {
  static const auto merge = [](const Json& shared, const char* own) {
    Json all = shared;
    all.update(Json::parse(own));
    return all;
  };
  static const Json of_texts = Json::parse(kHonoured);
  static const Json of_chat = merge(of_texts, kChat), of_completions = merge(of_texts, kCompletions), of_responses = merge(of_chat, kResponses);
  return body == Body::kChat ? of_chat : body == Body::kCompletions ? of_completions : of_responses;
}

Json idle_schema(const FieldRow& row) {
  if (row.type == Json::value_t::null) return Json::object();
  return {{"type", row.type == Json::value_t::boolean ? "boolean" : row.type == Json::value_t::object ? "object" : "string"}};
}

Json neutral_schema(const FieldRow& row) {
  if (row.neutral.empty()) return {{"type", "null"}};
  return {{"enum", row.neutral}};
}

Json field_schema(const FieldRow& row, const std::string& name, Body body) {
  if (row.use == FieldUse::kIdle) return idle_schema(row);
  return row.use == FieldUse::kNeutral && name != "best_of" ? neutral_schema(row) : honoured(body).at(name);
}

// Returns the schemas of all fields of a body, in the order of field_table().
Json table_properties(Body body) {
  Json properties = Json::object();
  for (const FieldRow& row : field_table()) {
    if (!row.is_of(body)) continue;
    for (const std::string& name : field_names(row)) properties[name] = field_schema(row, name, body);
  }
  return properties;
}

Json tokenize_properties() {
  Json properties = Json::parse(kTokenize);
  for (const char* name : {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "add_generation_prompt",
                           "continue_final_message", "chat_template_kwargs"}) {
    properties[name] = honoured(Body::kChat).at(name);
  }
  return properties;
}

}  // namespace

const Json& body_schema(Body body) {
  static const std::array<Json, 5> schemas = {
      object_schema(table_properties(Body::kChat), {"messages"}), object_schema(table_properties(Body::kCompletions), {"prompt"}),
      object_schema(table_properties(Body::kResponses), {"input"}), object_schema(tokenize_properties(), Json::array()),
      object_schema({{"model", {{"type", "string"}}}, {"tokens", {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}}}},
                    {"tokens"})};
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

}  // namespace smartkv::openai
