#include "server/openai/chat_messages.h"

#include <algorithm>
#include <array>

#include "server/openai/cut_json.h"
#include "server/openai/json_body.h"
#include "server/openai/tools.h"

namespace smartkv::openai {

namespace {

std::string element(const std::string& path, size_t index) { return path + "[" + std::to_string(index) + "]"; }

std::string read_text_part(const Json& part, const std::string& path) {
  FieldReader fields(part, path);
  if (const std::string type = fields.required_string("type"); type != "text") {
    throw invalid_request(
        fields.path("type"),
        "'" + fields.path("type") + "': this model reads text only: expected \"text\", found \"" + type + "\"");
  }
  std::string text = fields.required_string("text");
  fields.object("cache_control");
  fields.finish();
  return text;
}

// Returns the content as one text. Parts are joined by a line break, as authors of templates expect.
std::string read_content(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw wrong_type(path, "a string or an array of text parts", content);
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    if (i > 0) text += '\n';
    text += read_text_part(content[i], element(path, i));
  }
  return text;
}

// Returns the arguments of a call as an object, which templates expect. OpenAI accepts any text, because a model wrote
// it.
//  - A text that was cut is completed (cut_json.h).
//  - If keys are repeated, the last one counts.
//  - A text that does not begin an object is returned as it is.
Json read_arguments(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == text.npos) return Json::object();
  std::vector<std::string> texts = completed_json(text);
  texts.insert(texts.begin(), text);
  for (const std::string& one : texts) {
    try {
      Json arguments = parse_json(one, {.integers = Integers::kExact, .repeated_keys = true});
      if (arguments.is_object()) return arguments;
    } catch (const JsonSyntaxError&) {
    }
  }
  return text;
}

Json read_tool_call(const Json& call, const std::string& path) {
  FieldReader fields(call, path);
  fields.integer("index", 0, 0);  // some clients send back a stream's calls unchanged
  Json result = {{"id", fields.required_string("id")}, {"type", "function"}};
  require_function_type(fields);
  FieldReader inner(fields.required_object("function"), fields.path("function"));
  const std::string name = inner.required_string("name");
  const std::string arguments = inner.required_string("arguments");
  result["function"] = {{"name", name}, {"arguments", read_arguments(arguments)}};
  inner.finish();
  fields.finish();
  return result;
}

Json read_message(const Json& message, const std::string& path) {
  static constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};
  FieldReader fields(message, path);
  const std::string role = fields.required_string("role");
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    throw invalid_request(
        fields.path("role"),
        "'" + fields.path("role") + "': expected system, developer, user, assistant or tool, found \"" + role + "\"");
  }
  Json result = {{"role", role == "developer" ? "system" : role}};
  const Json* content = fields.find("content");
  const Json* calls = role == "assistant" ? fields.array("tool_calls") : nullptr;
  if (content != nullptr) {
    result["content"] = read_content(*content, fields.path("content"));
  } else if (role == "assistant") {  // its message has calls, or is empty
    result["content"] = "";
  } else {
    fields.required("content");
  }
  if (calls != nullptr && !calls->empty()) {
    result["tool_calls"] = Json::array();
    for (size_t i = 0; i < calls->size(); ++i) {
      result["tool_calls"].push_back(read_tool_call((*calls)[i], element(fields.path("tool_calls"), i)));
    }
  }
  if (auto name = fields.string("name")) result["name"] = *name;
  // Fields without effect here: clients copy them from answers of other servers, or send them as hints for caches.
  fields.string("id");
  fields.object("cache_control");
  if (role == "tool") result["tool_call_id"] = fields.required_string("tool_call_id");
  if (role == "assistant") {
    for (const std::string_view key : {"refusal", "audio", "function_call"}) fields.only_default(key);
    fields.only_default("annotations", {Json::array()});
    fields.object("provider_specific_fields");
    for (const char* key : {"reasoning_details", "thinking_blocks"}) fields.array(key);
    for (const char* key : {"reasoning_content", "reasoning"}) {
      if (auto reasoning = fields.string(key)) result["reasoning_content"] = *reasoning;
    }
  }
  fields.finish();
  return result;
}

}  // namespace

Json read_messages(const Json& messages) {
  if (messages.empty()) throw invalid_request("messages", "'messages': expected at least one message, found none");
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) result.push_back(read_message(messages[i], element("messages", i)));
  return result;
}

}  // namespace smartkv::openai
