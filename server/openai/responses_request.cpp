// A request of /v1/responses as one of /v1/chat/completions.
#include <array>
#include <utility>

#include "server/openai/field_table.h"
#include "server/openai/responses.h"

namespace smartkv::openai {

namespace {

// How errors of the chat request are to name the fields of this one; the longer names first.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kNames = {{{"response_format.json_schema", "text.format"},
                                                                                  {"response_format", "text.format"},
                                                                                  {"messages", "input"},
                                                                                  {"max_tokens", "max_output_tokens"},
                                                                                  {"chat_template_kwargs", "input"}}};

std::string renamed(std::string text) {
  for (const auto& [chat, here] : kNames) {
    for (size_t at = text.find(chat); at != text.npos; at = text.find(chat, at + here.size())) text.replace(at, chat.size(), here);
  }
  return text;
}

[[noreturn]] void unsupported(const std::string& path, const std::string& type) {
  throw invalid_request(path, "'" + path + "': \"" + type + "\" is not supported");
}

// Text, or a list of text parts.
Json read_parts(const Json& content, const std::string& path) {
  if (content.is_string()) return content;
  if (!content.is_array()) throw wrong_type(path, "a string or an array of text parts", content);
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    FieldReader part(content[i], path + "[" + std::to_string(i) + "]");
    const std::string type = part.required_string("type");
    if (type != "input_text" && type != "output_text" && type != "text") unsupported(part.path("type"), type);
    parts.push_back({{"type", "text"}, {"text", part.required_string("text")}});
    for (const char* key : {"annotations", "logprobs"}) part.array(key);
    part.finish();
  }
  return parts;
}

Json read_call(FieldReader& fields) {
  for (const char* key : {"id", "status", "namespace"}) fields.string(key);
  fields.only_default("async", {false});
  return {{"id", fields.required_string("call_id")},
          {"type", "function"},
          {"function", {{"name", fields.required_string("name")}, {"arguments", fields.required_string("arguments")}}}};
}

void add_item(const Json& item, const std::string& path, Json* messages) {
  FieldReader fields(item, path);
  const std::string type = fields.string("type").value_or("message");
  fields.only_default("caller");  // clients send items back as they came
  if (type == "function_call") {
    const Json call = read_call(fields);
    const bool goes_on = !messages->empty() && messages->back()["role"] == "assistant";
    if (!goes_on) messages->push_back({{"role", "assistant"}, {"content", nullptr}});
    Json& message = messages->back();
    if (!message.contains("tool_calls")) message["tool_calls"] = Json::array();
    message["tool_calls"].push_back(call);
  } else if (type == "function_call_output") {
    for (const char* key : {"id", "status"}) fields.string(key);
    const Json& output = fields.required("output");
    messages->push_back({{"role", "tool"}, {"tool_call_id", fields.required_string("call_id")}, {"content", read_parts(output, fields.path("output"))}});
  } else if (type == "message") {
    for (const char* key : {"id", "status", "phase"}) fields.string(key);
    const Json& content = fields.required("content");
    messages->push_back({{"role", fields.required_string("role")}, {"content", read_parts(content, fields.path("content"))}});
  } else {
    unsupported(fields.path("type"), type);
  }
  fields.finish();
}

Json read_input(FieldReader& fields) {
  Json messages = Json::array();
  if (const auto instructions = fields.string("instructions")) messages.push_back({{"role", "system"}, {"content", *instructions}});
  const Json& input = fields.required("input");
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
  } else if (input.is_array()) {
    for (size_t i = 0; i < input.size(); ++i) add_item(input[i], "input[" + std::to_string(i) + "]", &messages);
  } else {
    throw wrong_type("input", "a string or an array of items", input);
  }
  return messages;
}

// {"type": type, ...} as {"type": type, KEY: {...}}: what chat requests nest stands flat here.
Json nested(const Json& flat, const char* key) {
  Json inner = flat;
  const Json type = inner.value("type", Json(nullptr));
  inner.erase("type");
  return {{"type", type}, {key, std::move(inner)}};
}

Json read_tools(const Json& tools) {
  Json result = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) throw wrong_type("tools[" + std::to_string(i) + "]", "an object", tools[i]);
    result.push_back(nested(tools[i], "function"));
  }
  return result;
}

Json read_text(const Json& text) {
  FieldReader fields(text, "text");
  fields.only_default("verbosity", {"medium"});
  const Json* format = fields.object("format");
  fields.finish();
  if (format == nullptr) return nullptr;
  if (!format->contains("type") || (*format)["type"] != "json_schema") return *format;
  return nested(*format, "json_schema");
}

void refuse_unsupported(FieldReader& fields) {
  if (fields.find("previous_response_id") != nullptr || fields.find("conversation") != nullptr) {
    throw invalid_request("previous_response_id", "'previous_response_id' and 'conversation' are not supported: this server stores nothing, "
                                                  "send previous turns in 'input'");
  }
  read_table_fields(fields, Body::kResponses);
  if (const Json* options = fields.object("stream_options")) {
    FieldReader inner(*options, "stream_options");
    inner.boolean("include_obfuscation", false);
    inner.finish();
  }
}

Json chat_body(FieldReader& fields) {
  refuse_unsupported(fields);
  Json chat = {{"messages", read_input(fields)}, {"add_generation_prompt", true}};
  for (const FieldRow& row : field_table()) {
    if (!row.is_of(Body::kChat) || !row.is_of(Body::kResponses)) continue;
    for (const std::string& name : field_names(row)) {
      if (const Json* value = fields.find(name)) chat[name] = *value;
    }
  }
  if (const Json* limit = fields.find("max_output_tokens")) chat["max_tokens"] = *limit;
  if (const Json* tools = fields.array("tools")) chat["tools"] = read_tools(*tools);
  if (const Json* choice = fields.find("tool_choice")) chat["tool_choice"] = choice->is_object() ? nested(*choice, "function") : *choice;
  if (const Json* text = fields.object("text")) {
    if (Json format = read_text(*text); !format.is_null()) chat["response_format"] = std::move(format);
  }
  fields.finish();
  return chat;
}

Json echoed_members(const Json& body, const ApiRequest& chat) {
  const auto given = [&](const char* key, Json otherwise) {
    const auto value = body.find(key);
    return value == body.end() || value->is_null() ? std::move(otherwise) : *value;
  };
  const SamplingParams& sampling = chat.generations.front().sampling;
  Json text = given("text", Json::object());
  if (!text.contains("format")) text["format"] = {{"type", "text"}};
  return {{"background", false},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"metadata", given("metadata", Json::object())},
          {"model", chat.model},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
          {"service_tier", "default"},
          {"store", false},
          {"temperature", sampling.temperature},
          {"text", std::move(text)},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", sampling.top_p},
          {"truncation", "disabled"},
          {"user", given("user", nullptr)}};
}

}  // namespace

ResponsesRequest parse_responses(std::string_view body, const ServedModel& model) {
  const Json json = parse_body(body);
  FieldReader fields(json, &body_schema(Body::kResponses));
  const Json chat = chat_body(fields);
  ResponsesRequest request;
  try {
    request.chat = parse_chat(dump(chat), model);
  } catch (const ApiError& error) {
    throw ApiError(error.status, error.type, renamed(error.what()), renamed(error.param), error.code, error.retry_after_s);
  }
  request.chat.id = make_id("resp_");
  request.chat.generations.front().id = request.chat.id;
  request.echoed = echoed_members(json, request.chat);
  return request;
}

}  // namespace smartkv::openai
