// Turns a request of /v1/responses into a request of /v1/chat/completions.
#include <algorithm>
#include <string_view>
#include <utility>

#include "server/openai/field_table.h"
#include "server/openai/responses.h"

namespace smartkv::openai {

namespace {

[[noreturn]] void unsupported(const std::string& path, const std::string& type) {
  throw invalid_request(path, "'" + path + "': \"" + type + "\" is not supported");
}

// Returns the content of a chat message: a text, or a list of text parts.
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
  fields.string("namespace");
  fields.only_default("async", {false});
  return {{"id", fields.required_string("call_id")},
          {"type", "function"},
          {"function", {{"name", fields.required_string("name")}, {"arguments", fields.required_string("arguments")}}}};
}

// Turns the items of `input` into messages.
class InputReader {
 public:
  explicit InputReader(FieldNames* names) : names_(*names) {}

  void add(Json message, const std::string& place) {
    if (message["role"] == "assistant" && !reasoning_.empty()) message["reasoning_content"] = reasoning_;
    reasoning_.clear();
    names_.add(last(static_cast<int64_t>(messages_.size())), place);
    messages_.push_back(std::move(message));
  }

  void add_item(const Json& item, const std::string& path) {
    FieldReader fields(item, path);
    const std::string type = fields.string("type").value_or("message");
    fields.only_default("caller");  // clients send back items unchanged
    for (const char* key : {"id", "status"}) fields.string(key);
    if (type == "function_call") {
      add_call(read_call(fields), path);
    } else if (type == "function_call_output") {
      const Json& output = fields.required("output");
      add({{"role", "tool"},
           {"tool_call_id", fields.required_string("call_id")},
           {"content", read_parts(output, fields.path("output"))}},
          path);
      names_.add(last() + ".content", path + ".output");
      names_.add(last() + ".tool_call_id", path + ".call_id");
    } else if (type == "message") {
      fields.string("phase");
      const Json& content = fields.required("content");
      add({{"role", fields.required_string("role")}, {"content", read_parts(content, fields.path("content"))}}, path);
    } else if (type == "reasoning") {
      add_reasoning(fields);
    } else {
      unsupported(fields.path("type"), type);
    }
    fields.finish();
  }

  Json take() { return std::move(messages_); }

 private:
  static std::string last(int64_t index) { return "messages[" + std::to_string(index) + "]"; }
  std::string last() const { return last(static_cast<int64_t>(messages_.size()) - 1); }

  // Adds a call to the assistant's message before it, or to a new message if there is none.
  void add_call(Json call, const std::string& path) {
    if (messages_.empty() || messages_.back()["role"] != "assistant")
      add({{"role", "assistant"}, {"content", nullptr}}, path);
    Json& calls = messages_.back()["tool_calls"];
    if (calls.is_null()) calls = Json::array();
    const std::string name = last() + ".tool_calls[" + std::to_string(calls.size()) + "]";
    names_.add(name, path);
    names_.add(name + ".id", path + ".call_id");
    names_.add(name + ".function", path);
    calls.push_back(std::move(call));
  }

  // Keeps the text of a reasoning item for the assistant's message after it. Summaries and encrypted text are ignored,
  // because they are not meant for the model.
  void add_reasoning(FieldReader& fields) {
    fields.array("summary");
    fields.string("encrypted_content");
    const Json* content = fields.array("content");
    for (size_t i = 0; content != nullptr && i < content->size(); ++i) {
      FieldReader part((*content)[i], fields.path("content") + "[" + std::to_string(i) + "]");
      const std::string type = part.required_string("type");
      if (type != "reasoning_text") unsupported(part.path("type"), type);
      reasoning_ += part.required_string("text");
      part.finish();
    }
  }

  FieldNames& names_;
  Json messages_ = Json::array();
  std::string reasoning_;
};

// Returns the messages: the instructions, the turns before, and the input.
Json read_input(FieldReader& fields, const Json& before, FieldNames* names) {
  InputReader reader(names);
  names->add("messages", "input");
  if (const auto instructions = fields.string("instructions"))
    reader.add({{"role", "system"}, {"content", *instructions}}, "instructions");
  for (const Json& item : before) reader.add_item(item, "previous_response_id");
  const Json& input = fields.required("input");
  if (input.is_string()) {
    reader.add({{"role", "user"}, {"content", input}}, "input");
  } else if (input.is_array()) {
    for (size_t i = 0; i < input.size(); ++i) reader.add_item(input[i], "input[" + std::to_string(i) + "]");
  } else {
    throw wrong_type("input", "a string or an array of items", input);
  }
  return reader.take();
}

// Turns {"type": type, ...} into {"type": type, KEY: {...}}: chat requests nest objects that are flat in this API.
Json nested(const Json& flat, const char* key) {
  Json inner = flat;
  const Json type = inner.value("type", Json(nullptr));
  inner.erase("type");
  return {{"type", type}, {key, std::move(inner)}};
}

Json read_tools(const Json& tools, FieldNames* names) {
  Json result = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    if (!tools[i].is_object()) throw wrong_type(path, "an object", tools[i]);
    names->add(path + ".function", path);
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

// Returns the effort in `reasoning`, null if there is none. Summaries are not made: the reasoning itself is returned.
Json read_reasoning(const Json& reasoning) {
  FieldReader fields(reasoning, "reasoning");
  const Json* effort = fields.find("effort");
  for (const char* key : {"summary", "generate_summary"}) fields.string(key);
  fields.finish();
  return effort == nullptr ? Json() : *effort;
}

// Checks `include`, whose values name parts of items that this server never makes.
void read_include(const Json& include, const Json& allowed) {
  for (size_t i = 0; i < include.size(); ++i) {
    const std::string path = "include[" + std::to_string(i) + "]", name = read_string(include[i], path);
    if (std::find(allowed.begin(), allowed.end(), name) == allowed.end()) unsupported(path, name);
  }
}

void refuse_unsupported(FieldReader& fields) {
  read_table_fields(fields, Body::kResponses);
  if (const Json* options = fields.object("stream_options")) {
    FieldReader inner(*options, "stream_options");
    inner.boolean("include_obfuscation", false);
    inner.finish();
  }
}

// Returns the items of the turns before this one.
Json read_before(FieldReader& fields, StoredResponses* stored, const std::string& owner) {
  const auto id = fields.string("previous_response_id");
  if (!id) return Json::array();
  if (stored != nullptr) return stored->conversation(*id, owner);
  throw invalid_request("previous_response_id",
                        "'previous_response_id': this server stores no responses: send previous turns in 'input', or "
                        "start the server with --stored-responses-bytes");
}

// Returns `input` as a list of items that have a type, and an id that no other item has.
Json items_of(const Json& input) {
  if (input.is_string()) {
    const Json part = {{"type", "input_text"}, {"text", input}};
    return Json::array(
        {{{"type", "message"}, {"id", make_id("msg_")}, {"role", "user"}, {"content", Json::array({part})}}});
  }
  Json items = input;
  for (Json& item : items) {
    if (!item.contains("type") || item["type"].is_null()) item["type"] = "message";
    item["id"] = make_id("item_");
  }
  return items;
}

Json chat_body(FieldReader& fields, const Json& before, FieldNames* names) {
  refuse_unsupported(fields);
  Json chat = {{"messages", read_input(fields, before, names)}, {"add_generation_prompt", true}};
  for (const FieldRow& row : field_table()) {
    if (!row.is_of(Body::kChat) || !row.is_of(Body::kResponses)) continue;
    for (const std::string& name : field_names(row)) {
      if (const Json* value = fields.find(name)) chat[name] = *value;
    }
  }
  for (const auto& [inner, outer] :
       {std::pair("max_tokens", "max_output_tokens"), std::pair("tool_choice.function", "tool_choice"),
        std::pair("response_format", "text.format"), std::pair("reasoning_effort", "reasoning.effort"),
        std::pair("response_format.json_schema", "text.format")}) {
    names->add(inner, outer);
  }
  if (const Json* limit = fields.find("max_output_tokens")) chat["max_tokens"] = *limit;
  if (const Json* tools = fields.array("tools")) chat["tools"] = read_tools(*tools, names);
  if (const Json* choice = fields.find("tool_choice"))
    chat["tool_choice"] = choice->is_object() ? nested(*choice, "function") : *choice;
  if (const Json* text = fields.object("text")) {
    if (Json format = read_text(*text); !format.is_null()) chat["response_format"] = std::move(format);
  }
  if (const Json* reasoning = fields.object("reasoning")) chat["reasoning_effort"] = read_reasoning(*reasoning);
  if (const Json* include = fields.array("include")) read_include(*include, fields.schema("include")["items"]["enum"]);
  return chat;
}

// Reads whether the response is stored, and who waits for it.
void read_storage(FieldReader& fields, const StoredResponses* stored, ResponsesRequest* request) {
  const bool store = fields.boolean("store") && stored != nullptr;
  request->background = fields.boolean("background");
  if (request->background && !store) {
    throw invalid_request("background", stored == nullptr
                                            ? "'background': this server stores no responses, so nobody could read the "
                                              "response: start the server with --stored-responses-bytes"
                                            : "'background': expected 'store' to be true");
  }
  if (store) request->input = items_of(fields.required("input"));
}

Json echoed_members(const Json& body, const ResponsesRequest& request) {
  const ApiRequest& chat = request.chat;
  const auto given = [&](const char* key, const Json& otherwise) {
    const auto value = body.find(key);
    return value == body.end() || value->is_null() ? otherwise : *value;
  };
  const SamplingParams& sampling = chat.generations.front().sampling;
  Json reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  reasoning.update(given("reasoning", Json::object()));
  Json text = given("text", Json::object());
  if (!text.contains("format")) text["format"] = {{"type", "text"}};
  return {{"background", request.background},
          {"error", nullptr},
          {"incomplete_details", nullptr},
          {"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"metadata", given("metadata", Json::object())},
          {"model", chat.model},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", given("previous_response_id", nullptr)},
          {"reasoning", std::move(reasoning)},
          {"service_tier", "default"},
          {"store", !request.input.is_null()},
          {"temperature", given("temperature", sampling.temperature)},
          {"text", std::move(text)},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", given("top_p", sampling.top_p)},
          {"truncation", "disabled"},
          {"user", given("user", nullptr)}};
}

}  // namespace

ResponsesRequest parse_responses(std::string_view body, const ServedModel& model, StoredResponses* stored,
                                 const std::string& owner) {
  const Json json = parse_body(body);
  FieldReader fields(json, &body_schema(Body::kResponses));
  ResponsesRequest request;
  const Json chat = chat_body(fields, read_before(fields, stored, owner), &request.names);
  read_storage(fields, stored, &request);
  fields.finish();
  try {
    request.chat = read_chat(chat, model);
  } catch (const ApiError& error) {
    throw request.names.outer(error);
  }
  if (request.background && request.chat.stream)
    throw invalid_request("stream", "'stream': expected false with 'background', found true");
  request.chat.id = make_id("resp_");
  request.chat.generations.front().id = request.chat.id;
  request.echoed = echoed_members(json, request);
  return request;
}

}  // namespace smartkv::openai
