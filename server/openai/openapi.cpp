#include "server/openai/openapi.h"

#include <vector>

#include "server/openai/field_table.h"
#include "server/version.h"

namespace smartkv::openai {

namespace {

// Schemas of answers. An answer may have members that its schema does not name.
constexpr const char* kSchemas = R"({
  "Error": {"type": "object", "required": ["error"], "properties": {"error": {
    "type": "object", "required": ["message", "type", "param", "code"], "properties": {
      "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}},
  "MessagesError": {"type": "object", "required": ["type", "error", "request_id"], "properties": {
    "type": {"const": "error"}, "request_id": {"type": "string"}, "error": {"type": "object", "required": ["type", "message"],
      "properties": {"type": {"type": "string"}, "message": {"type": "string"}}}}},
  "Health": {"type": "object", "required": ["status", "model", "version"], "properties": {
    "status": {"enum": ["ok", "draining", "failing", "alive", "lost"]},
    "model": {"type": "string"}, "version": {"type": "string"}}},
  "Version": {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}},
  "Model": {"type": "object", "required": ["id", "object", "created", "owned_by", "root", "max_model_len", "details"], "properties": {
    "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"}, "owned_by": {"type": "string"},
    "root": {"type": "string"}, "max_model_len": {"type": "integer"}, "details": {"type": "object"}}},
  "Models": {"type": "object", "required": ["object", "data"], "properties": {
    "object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
  "Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens", "kv_cache", "seed"], "properties": {
    "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
    "prompt_tokens_details": {"type": "object"}, "completion_tokens_details": {"type": "object"}, "speculative": {"type": "object"},
    "seed": {"type": "integer"},
    "kv_cache": {"type": "object", "required": ["policy", "spec", "tokens", "tokens_kept", "bytes", "shared_bytes", "full_bytes", "tiers"], "properties": {
      "policy": {"type": "string"}, "spec": {"type": "object"}, "tokens": {"type": "integer"}, "tokens_kept": {"type": "integer"}, "bytes": {"type": "integer"},
      "shared_bytes": {"type": "integer"}, "full_bytes": {"type": "integer"}, "tiers": {"$ref": "#/components/schemas/Tiers"},
      "details": {"type": "object"}, "stand_in": {"type": "string"}, "promise": {"$ref": "#/components/schemas/Promise"}}}}},
  "Promise": {"type": "object", "required": ["max_kl", "kl", "perplexity_percent", "bytes_per_token"], "properties": {
    "max_kl": {"type": "number"}, "kl": {"type": "number"}, "perplexity_percent": {"type": "number"},
    "bytes_per_token": {"type": "number"}, "kept": {"type": "boolean"}, "steps": {"type": "integer"}}},
  "Timings": {"type": "object", "properties": {
    "queued_ms": {"type": "number"}, "prefill_ms": {"type": "number"}, "decode_ms": {"type": "number"}, "total_ms": {"type": "number"},
    "model_ms": {"type": "number"}, "sample_ms": {"type": "number"}, "preempted_ms": {"type": "number"},
    "prefill_chunks": {"type": "integer"}, "decode_passes": {"type": "integer"}, "preemptions": {"type": "integer"},
    "recomputed_tokens": {"type": "integer"},
    "prefill_tokens_per_second": {"type": "number"}, "decode_tokens_per_second": {"type": "number"}}},
  "Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage", "timings"], "properties": {
    "id": {"type": "string"}, "object": {"enum": ["chat.completion", "text_completion"]}, "created": {"type": "integer"},
    "model": {"type": "string"}, "system_fingerprint": {"type": "string"}, "timings": {"$ref": "#/components/schemas/Timings"},
    "usage": {"$ref": "#/components/schemas/Usage"},
    "choices": {"type": "array", "items": {"type": "object", "required": ["index", "logprobs", "finish_reason"], "properties": {
      "index": {"type": "integer"}, "finish_reason": {"enum": ["stop", "length", "tool_calls"]}, "logprobs": {"type": ["object", "null"]},
      "text": {"type": "string"},
      "message": {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"const": "assistant"}, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"},
        "reasoning_content": {"type": "string"},
        "tool_calls": {"type": "array", "items": {"type": "object", "required": ["id", "type", "function"]}}}}}}}}},
  "Response": {"type": "object", "required": ["id", "object", "created_at", "status", "model", "output", "usage"], "properties": {
    "id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
    "status": {"enum": ["completed", "incomplete", "in_progress", "failed", "cancelled"]}, "model": {"type": "string"},
    "output": {"type": "array", "items": {"type": "object", "required": ["id", "type", "status"], "properties": {
      "type": {"enum": ["message", "reasoning", "function_call"]}}}},
    "usage": {"type": ["object", "null"], "required": ["input_tokens", "output_tokens", "total_tokens"]}}},
  "DeletedResponse": {"type": "object", "required": ["id", "object", "deleted"], "properties": {
    "id": {"type": "string"}, "object": {"const": "response"}, "deleted": {"const": true}}},
  "Items": {"type": "object", "required": ["object", "data", "has_more", "first_id", "last_id"], "properties": {
    "object": {"const": "list"}, "data": {"type": "array", "items": {"type": "object"}}, "has_more": {"type": "boolean"},
    "first_id": {"type": ["string", "null"]}, "last_id": {"type": ["string", "null"]}}},
  "Message": {"type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], "properties": {
    "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"}, "model": {"type": "string"},
    "content": {"type": "array", "items": {"type": "object", "required": ["type"], "properties": {
      "type": {"enum": ["text", "tool_use", "thinking"]}}}},
    "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]},
    "stop_sequence": {"type": ["string", "null"]},
    "usage": {"type": "object", "required": ["input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"],
      "properties": {"input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"},
      "cache_creation_input_tokens": {"type": "integer"}, "cache_read_input_tokens": {"type": "integer"}, "smartkv": {"type": "object"}}}}},
  "TokenCount": {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}},
  "Tokens": {"type": "object", "required": ["tokens"], "properties": {
    "count": {"type": "integer"}, "max_model_len": {"type": "integer"}, "token_strs": {"type": "array", "items": {"type": "string"}},
    "tokens": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "object", "required": ["id", "piece"], "properties": {
      "id": {"type": "integer"}, "piece": {"type": "string"}}}]}}}},
  "TokenizerInfo": {"type": "object", "required": ["bos_token", "eos_token"], "properties": {
    "bos_token": {"type": ["string", "null"]}, "eos_token": {"type": ["string", "null"]}}},
  "Text": {"type": "object", "required": ["prompt", "content"], "properties": {"prompt": {"type": "string"}, "content": {"type": "string"}}},
  "LiveSequences": {"type": "object", "required": ["object", "bytes", "prefix_cache_bytes", "budget_bytes", "layer", "data"], "properties": {
    "object": {"const": "list"}, "bytes": {"type": "integer"}, "prefix_cache_bytes": {"type": "integer"}, "budget_bytes": {"type": "integer"},
    "layer": {"type": ["integer", "null"]},
    "data": {"type": "array", "items": {
      "type": "object", "required": ["id", "choice", "state", "policy", "bytes", "tokens", "spans"], "properties": {
        "id": {"type": "string"}, "choice": {"type": "integer"}, "state": {"enum": ["waiting", "prompt", "decoding"]},
        "policy": {"type": "string"}, "speculative": {"type": "string"},
        "prompt_tokens": {"type": "integer"}, "cached_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"},
        "computed_tokens": {"type": "integer"}, "preemptions": {"type": "integer"},
        "bytes": {"type": "integer"}, "shared_bytes": {"type": "integer"}, "full_bytes": {"type": "integer"}, "draft_bytes": {"type": "integer"},
        "tokens": {"$ref": "#/components/schemas/Tiers"},
        "spans": {"type": "array", "items": {"type": "object", "required": ["first", "end", "tiers"], "properties": {
          "first": {"type": "integer"}, "end": {"type": "integer"}, "tiers": {"$ref": "#/components/schemas/Tiers"}}}}}}}}},
  "Tiers": {"type": "object", "additionalProperties": {"type": "number"},
            "propertyNames": {"enum": ["exact", "1_bit", "2_bit", "3_bit", "4_bit", "5_bit", "6_bit", "7_bit", "8_bit", "summarised", "evicted"]}},
  "Plan": {"type": "object", "required": ["object", "model", "context_length", "kv_cache_bytes", "data"], "properties": {
    "object": {"const": "plan"}, "model": {"type": "string"}, "context_length": {"type": "integer"}, "kv_cache_bytes": {"type": "integer"},
    "data": {"type": "array", "items": {"type": "object", "required": ["prompt_tokens", "max_tokens", "n", "plans"], "properties": {
      "prompt_tokens": {"type": "integer"}, "max_tokens": {"type": "integer"}, "n": {"type": "integer"},
      "plans": {"type": "array", "items": {
        "type": "object",
        "required": ["kv_cache", "policy", "fits", "reason", "prompt_bytes", "final_bytes", "max_bytes", "output_tokens", "sequences"],
        "properties": {
          "kv_cache": {"type": ["string", "object"]}, "policy": {"type": ["string", "null"]}, "fits": {"type": "boolean"},
          "reason": {"type": ["string", "null"]}, "prompt_bytes": {"type": "integer"}, "final_bytes": {"type": "integer"},
          "max_bytes": {"type": "integer"}, "output_tokens": {"type": "integer"}, "sequences": {"type": "integer"}}}}}}}}}
})";

Json ref(const std::string& name) { return {{"$ref", "#/components/schemas/" + name}}; }

Json content(const char* type, Json schema) { return {{type, {{"schema", std::move(schema)}}}}; }

struct Traits {
  const char* body = "";        // name of a schema, or "" without a body
  const char* error = "Error";  // name of the schema of its errors
  bool open = false;            // whether it needs no API key
  bool streams = false;         // whether it may answer with server-sent events
  Json parameters = Json::array();
};

struct Operation {
  const char* method;
  const char* path;
  const char* summary;
  const char* answer;  // name of a schema, or a media type
  Traits traits = {};
};

Json parameter(const char* name, const char* in, Json schema, const char* description) {
  return {{"name", name},
          {"in", in},
          {"required", std::string_view(in) == "path"},
          {"schema", std::move(schema)},
          {"description", description}};
}

const std::vector<Operation>& operations() {
  static const Json string = {{"type", "string"}}, count = {{"type", "integer"}, {"minimum", 0}};
  static const Json response_id = Json::array({parameter("id", "path", string, "Id of the response")});
  static const std::vector<Operation> table = {
      {"get", "/health", "Readiness, like /health/ready", "Health", {.open = true}},
      {"get",
       "/health/ready",
       "Readiness: 200, or 503 while the server drains or every request fails",
       "Health",
       {.open = true}},
      {"get",
       "/health/live",
       "Liveness: 200, or 503 once a process of the model is lost, after which the server ends",
       "Health",
       {.open = true}},
      {"get", "/version", "The program's version", "Version", {.open = true}},
      {"get", "/metrics", "Metrics for Prometheus", "text/plain"},
      {"get", "/openapi.json", "This document", "application/json", {.open = true}},
      {"get", "/v1/models", "The model under each of its names", "Models"},
      {"get",
       "/v1/models/{model}",
       "The model under one of its names",
       "Model",
       {.parameters = Json::array({parameter("model", "path", string, "Name of the model")})}},
      {"post", "/v1/chat/completions", "Answers messages", "Completion", {.body = "ChatRequest", .streams = true}},
      {"post", "/v1/completions", "Continues a text", "Completion", {.body = "CompletionRequest", .streams = true}},
      {"post", "/v1/responses", "OpenAI's Responses API", "Response", {.body = "ResponsesRequest", .streams = true}},
      {"get", "/v1/responses/{id}", "A stored response, or one that runs", "Response", {.parameters = response_id}},
      {"delete", "/v1/responses/{id}", "Deletes a stored response", "DeletedResponse", {.parameters = response_id}},
      {"post",
       "/v1/responses/{id}/cancel",
       "Ends a response that runs in the background",
       "Response",
       {.parameters = response_id}},
      {"get",
       "/v1/responses/{id}/input_items",
       "The turns before a stored response, the latest first",
       "Items",
       {.parameters =
            Json::array({response_id[0], parameter("limit", "query", count, "How many to list, 1 to 100; default 20"),
                         parameter("order", "query", {{"enum", Json::array({"asc", "desc"})}}, "Default desc"),
                         parameter("after", "query", string, "Id of the item behind which the list begins")})}},
      {"post",
       "/v1/messages",
       "Anthropic's Messages API",
       "Message",
       {.body = "MessagesRequest", .error = "MessagesError", .streams = true}},
      {"post",
       "/v1/messages/count_tokens",
       "Tokens of the prompt of a message",
       "TokenCount",
       {.body = "CountTokensRequest", .error = "MessagesError"}},
      {"post", "/v1/embeddings", "Always 501: this server does not support embeddings", "Error", {.body = "Anything"}},
      {"get",
       "/v1/kv",
       "Live sequences and the contents of their caches",
       "LiveSequences",
       {.parameters = Json::array({parameter("layer", "query", count,
                                             "Layer whose spans are reported; without it, no spans are reported")})}},
      {"get",
       "/v1/kv/prefixes",
       "Stored prefixes, the most valuable first; those of the lowest value are evicted first",
       "application/json",
       {.parameters = Json::array({parameter("limit", "query", count, "How many to list, 1 to 1000; default 100")})}},
      {"post",
       "/v1/plan",
       "Memory that a request would need under each policy, without running it",
       "Plan",
       {.body = "PlanRequest"}},
      {"post", "/tokenize", "Tokens of a text or of messages", "Tokens", {.body = "TokenizeRequest"}},
      {"post", "/detokenize", "The text of tokens", "Text", {.body = "DetokenizeRequest"}},
      {"get", "/tokenizer_info", "The tokens that begin and end a text", "TokenizerInfo"},
      {"get", "/", "The playground", "text/html", {.open = true}},
      {"get",
       "/playground/{file}",
       "Files of the playground",
       "*/*",
       {.open = true, .parameters = Json::array({parameter("file", "path", string, "Name")})}},
  };
  return table;
}

Json answer_content(const Operation& operation) {
  const std::string answer = operation.answer;
  if (answer == "application/json") return content("application/json", {{"type", "object"}});
  if (answer.find('/') != answer.npos) return content(operation.answer, Json::object());
  Json result = content("application/json", ref(answer));
  if (operation.traits.streams) result.update(content("text/event-stream", Json::object()));
  return result;
}

Json operation_json(const Operation& operation) {
  const Json error = {{"description", "An error"},
                      {"content", content("application/json", ref(operation.traits.error))}};
  Json responses = {{"200", {{"description", operation.summary}, {"content", answer_content(operation)}}}};
  if (std::string_view(operation.answer) == "Health") {
    responses["503"] = {{"description", "Not ready or not live; `status` says why"},
                        {"content", content("application/json", ref("Health"))}};
  }
  if (std::string_view(operation.answer) == "Error") responses = {{"501", error}};
  responses["4XX"] = error;
  responses["5XX"] = error;
  Json json = {{"summary", operation.summary}, {"parameters", operation.traits.parameters}};
  if (*operation.traits.body != '\0') {
    json["requestBody"] = {{"required", true}, {"content", content("application/json", ref(operation.traits.body))}};
  }
  json["responses"] = std::move(responses);
  // The empty object allows requests without a key, for servers that have none.
  json["security"] = Json::array({Json::object()});
  if (!operation.traits.open)
    json["security"].push_back({{"bearer", Json::array()}}), json["security"].push_back({{"header", Json::array()}});
  return json;
}

Json make_openapi() {
  Json schemas = Json::parse(kSchemas);
  schemas["Anything"] = Json::object();
  schemas["ChatRequest"] = with_nulls(body_schema(Body::kChat));
  schemas["CompletionRequest"] = with_nulls(body_schema(Body::kCompletions));
  schemas["ResponsesRequest"] = with_nulls(body_schema(Body::kResponses));
  schemas["MessagesRequest"] = with_nulls(body_schema(Body::kMessages));
  schemas["CountTokensRequest"] = with_nulls(body_schema(Body::kCountTokens));
  schemas["TokenizeRequest"] = with_nulls(body_schema(Body::kTokenize));
  schemas["DetokenizeRequest"] = with_nulls(body_schema(Body::kDetokenize));
  schemas["PlanRequest"] = {{"anyOf", Json::array({ref("ChatRequest"), ref("CompletionRequest")})}};
  Json paths = Json::object();
  for (const Operation& operation : operations()) paths[operation.path][operation.method] = operation_json(operation);
  return {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "SmartKV"}, {"version", kVersion}, {"summary", "An LLM server with a KV-cache policy per request"}}},
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", std::move(schemas)},
        {"securitySchemes",
         {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
          {"header", {{"type", "apiKey"}, {"in", "header"}, {"name", "X-Api-Key"}}}}}}}};
}

}  // namespace

const Json& openapi() {
  static const Json document = make_openapi();
  return document;
}

}  // namespace smartkv::openai
