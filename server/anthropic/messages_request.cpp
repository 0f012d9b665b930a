// Turns a request of /v1/messages into a request of /v1/chat/completions.
#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "server/anthropic/messages.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/field_table.h"
#include "server/openai/reasoning.h"

namespace smartkv::anthropic {

using openai::ApiError;
using openai::Body;
using openai::FieldNames;
using openai::FieldReader;
using openai::invalid_request;
using openai::wrong_type;

namespace {

constexpr int kMostCacheMarks = 4;
constexpr int64_t kLeastBudget = 1024;

std::string element(const std::string& path, size_t index) { return path + "[" + std::to_string(index) + "]"; }

[[noreturn]] void refuse(const std::string& path, const std::string& expected, const std::string& found) {
  throw invalid_request(path, "'" + path + "': expected " + expected + ", found \"" + found + "\"");
}

std::string listed(std::initializer_list<std::string_view> words) {
  std::string text;
  for (const std::string_view word : words) {
    text.append(text.empty() ? "" : word == *(words.end() - 1) ? " or " : ", ").append(word);
  }
  return text;
}

// Reads a text that is one of `words`. `fallback` is the value of an absent field; empty if it is required.
std::string read_word(FieldReader& fields, const char* key, std::initializer_list<std::string_view> words,
                      const char* fallback = "") {
  std::string word =
      *fallback == '\0' ? fields.required_string(key) : fields.string(key).value_or(std::string(fallback));
  if (std::find(words.begin(), words.end(), word) == words.end()) refuse(fields.path(key), listed(words), word);
  return word;
}

// Reads the cache_control of every place that may have one.
class CacheMarks {
 public:
  void read(FieldReader& holder) {
    const Json* mark = holder.object("cache_control");
    if (mark == nullptr) return;
    const std::string path = holder.path("cache_control");
    FieldReader fields(*mark, path);
    read_word(fields, "type", {"ephemeral"});
    const std::string ttl = read_word(fields, "ttl", {"5m", "1h"}, "5m");
    fields.string("scope");  // who shares the prefix: here everybody with the same cache_salt
    fields.finish();
    if (++count_ > kMostCacheMarks) {
      throw invalid_request(path, "'" + path + "': expected at most " + std::to_string(kMostCacheMarks) +
                                      " members cache_control in a request, found more");
    }
    if (ttl_ != "1h") ttl_ = ttl;
  }
  const std::string& ttl() const { return ttl_; }  // the longest one; empty if there is none

 private:
  int count_ = 0;
  std::string ttl_;
};

// Turns `system` and `messages` into the messages of a chat request. A user's message becomes one message for each
// result of a tool and one for its text. Messages of one role that follow each other become one.
class HistoryReader {
 public:
  HistoryReader(MessagesRequest* request, CacheMarks* marks) : request_(*request), marks_(*marks) {}

  void add_system(const Json& system, const std::string& path) { add_parts("system", read_texts(system, path), path); }

  void add_message(const Json& message, const std::string& path) {
    FieldReader fields(message, path);
    const std::string role = read_word(fields, "role", {"user", "assistant", "system"});
    const Json& content = fields.required("content");
    const std::string place = fields.path("content");
    fields.finish();
    if (role == "system") return add_system(content, place);
    if (content.is_string()) return add_parts(role, Json::array({text_part(content)}), path);
    if (!content.is_array()) throw wrong_type(place, "a string or an array of blocks", content);
    if (content.empty()) throw invalid_request(place, "'" + place + "': expected at least one block, found none");
    for (size_t i = 0; i < content.size(); ++i) add_block(role, content[i], element(place, i), path);
  }

  Json take() {
    const Json* last = messages_.empty() ? nullptr : &messages_.back();
    if (last != nullptr && last->contains("tool_calls")) {
      throw invalid_request("messages", "'messages': the tool_use blocks at the end have no tool_result blocks");
    }
    return std::move(messages_);
  }

 private:
  static Json text_part(const Json& text) { return {{"type", "text"}, {"text", text}}; }

  // Returns the message to add to: the last one if it has the role, else a new one.
  Json& message_of(const std::string& role, const std::string& path) {
    if (!messages_.empty() && messages_.back()["role"] == role) return messages_.back();
    request_.names.add(element("messages", messages_.size()), path);
    messages_.push_back({{"role", role}, {"content", Json::array()}});
    return messages_.back();
  }

  void add_parts(const std::string& role, Json parts, const std::string& path) {
    Json& content = message_of(role, path)["content"];
    for (Json& part : parts) content.push_back(std::move(part));
  }

  Json read_text(FieldReader& fields) {
    marks_.read(fields);
    fields.only_default("citations", {Json::array()});
    return text_part(fields.required_string("text"));
  }

  // Returns the parts of a string or an array of text blocks.
  Json read_texts(const Json& content, const std::string& path) {
    if (content.is_string()) return Json::array({text_part(content)});
    if (!content.is_array()) throw wrong_type(path, "a string or an array of text blocks", content);
    Json parts = Json::array();
    for (size_t i = 0; i < content.size(); ++i) {
      FieldReader block(content[i], element(path, i));
      refuse_media(block);
      read_word(block, "type", {"text"});
      parts.push_back(read_text(block));
      block.finish();
    }
    return parts;
  }

  static void refuse_media(FieldReader& block) {
    const std::string type = block.required_string("type");
    if (type != "image" && type != "document") return;
    throw invalid_request(block.path("type"), "'" + block.path("type") + "': this model reads text only: \"" + type +
                                                  "\" is not supported");
  }

  void add_block(const std::string& role, const Json& block, const std::string& path, const std::string& message) {
    FieldReader fields(block, path);
    refuse_media(fields);
    const bool by_user = role == "user";
    const std::string type = by_user ? read_word(fields, "type", {"text", "tool_result"})
                                     : read_word(fields, "type", {"text", "tool_use", "thinking", "redacted_thinking"});
    if (type == "text") {
      add_parts(role, Json::array({read_text(fields)}), message);
    } else if (type == "tool_result") {
      add_result(fields, path);
    } else if (type == "tool_use") {
      add_call(fields, message);
    } else {
      add_thinking(fields, type, message);
    }
    fields.finish();
  }

  void add_result(FieldReader& fields, const std::string& path) {
    marks_.read(fields);
    fields.only_default("toolset_name");
    const std::string id = fields.required_string("tool_use_id");
    if (!calls_.contains(id)) refuse(fields.path("tool_use_id"), "the id of a tool_use block before it", id);
    const Json* content = fields.find("content");
    Json parts = content == nullptr ? Json::array() : read_texts(*content, fields.path("content"));
    if (fields.boolean("is_error", false)) parts.insert(parts.begin(), text_part("Error:"));
    request_.names.add(element("messages", messages_.size()), path);
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(parts)}});
  }

  void add_call(FieldReader& fields, const std::string& path) {
    marks_.read(fields);
    fields.only_default("toolset_name");
    fields.only_default("caller", {Json{{"type", "direct"}}});
    const std::string id = fields.required_string("id"), name = fields.required_string("name");
    calls_.insert(id);
    const std::string input = openai::dump(fields.required_object("input"));
    message_of("assistant", path)["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", input}}}});
  }

  // Adds thinking that this server has signed. Other thinking is not shown to the model.
  void add_thinking(FieldReader& fields, const std::string& type, const std::string& path) {
    std::optional<std::string> thinking;
    if (type == "thinking") {
      thinking = request_.signer.open(fields.required_string("thinking"), fields.required_string("signature"));
    } else {
      fields.required_string("data");
    }
    Json& message = message_of("assistant", path);
    if (!thinking) {
      ++request_.ignored_thinking;
      return;
    }
    if (message.contains("reasoning_content")) {
      message["reasoning_content"].get_ref<std::string&>() += "\n" + *thinking;
    } else {
      message["reasoning_content"] = *thinking;
    }
  }

  MessagesRequest& request_;
  CacheMarks& marks_;
  Json messages_ = Json::array();
  std::set<std::string> calls_;  // ids of the tool_use blocks so far
};

// Returns the description of a tool with its examples, for which chat templates have no place.
Json described(FieldReader& fields) {
  const auto description = fields.string("description");
  const Json* examples = fields.array("input_examples");
  if (examples == nullptr || examples->empty()) return description ? Json(*description) : Json(nullptr);
  std::string text = description.value_or("");
  text += "\n\nExamples of the input:";
  for (size_t i = 0; i < examples->size(); ++i) {
    const std::string path = element(fields.path("input_examples"), i);
    if (!(*examples)[i].is_object()) throw wrong_type(path, "an object", (*examples)[i]);
    text.append("\n").append(openai::dump((*examples)[i]));
  }
  return text;
}

Json read_tool(const Json& tool, const std::string& path, CacheMarks* marks) {
  FieldReader fields(tool, path);
  if (const std::string type = fields.string("type").value_or("custom"); type != "custom") {
    throw invalid_request(fields.path("type"), "'" + fields.path("type") + "': \"" + type +
                                                   "\" is not supported, because this server runs no tools of its "
                                                   "own: expected \"custom\" or an absent field");
  }
  marks->read(fields);
  fields.only_default("defer_loading", {false});
  fields.only_default("allowed_callers", {Json::array({"direct"})});
  fields.boolean("eager_input_streaming", false);  // inputs are streamed as they are generated in any case
  Json function = {{"name", fields.required_string("name")}, {"parameters", fields.required_object("input_schema")}};
  function["strict"] = fields.boolean("strict", false);
  if (Json description = described(fields); !description.is_null()) function["description"] = std::move(description);
  fields.finish();
  return {{"type", "function"}, {"function", std::move(function)}};
}

void read_tools(const Json& tools, MessagesRequest* request, CacheMarks* marks, Json* chat) {
  (*chat)["tools"] = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = element("tools", i);
    request->names.add(path + ".function", path);
    request->names.add(path + ".function.parameters", path + ".input_schema");
    (*chat)["tools"].push_back(read_tool(tools[i], path, marks));
  }
}

void read_tool_choice(const Json& choice, MessagesRequest* request, Json* chat) {
  FieldReader fields(choice, "tool_choice");
  const std::string type = read_word(fields, "type", {"auto", "any", "tool", "none"});
  if (type != "none" && fields.boolean("disable_parallel_tool_use", false)) (*chat)["parallel_tool_calls"] = false;
  Json& chosen = (*chat)["tool_choice"] = type == "any" ? "required" : type;
  if (type == "tool") chosen = {{"type", "function"}, {"function", {{"name", fields.required_string("name")}}}};
  fields.finish();
  request->names.add("tool_choice.function", "tool_choice");
}

// Reads `thinking` and sets the variable by which chat templates turn thinking on and off. `max_tokens` is -1 if the
// request has none.
void read_thinking(const Json& thinking, int64_t max_tokens, MessagesRequest* request, Json* chat) {
  FieldReader fields(thinking, "thinking");
  const std::string type = read_word(fields, "type", {"enabled", "adaptive", "disabled"});
  if (type == "enabled") {
    fields.required("budget_tokens");
    const int64_t budget = fields.integer("budget_tokens", 0, kLeastBudget);
    if (max_tokens >= 0 && budget >= max_tokens) {
      throw invalid_request("thinking.budget_tokens", "'thinking.budget_tokens': expected less than max_tokens (" +
                                                          std::to_string(max_tokens) + "), found " +
                                                          std::to_string(budget));
    }
    (*chat)["thinking_budget"] = budget;
    request->names.add("thinking_budget", "thinking.budget_tokens");
  }
  if (type != "disabled")
    request->omits_thinking = read_word(fields, "display", {"summarized", "omitted"}, "summarized") == "omitted";
  fields.finish();
  Json& variables = (*chat)["chat_template_kwargs"];
  for (const std::string name : {"enable_thinking", "thinking"}) {  // templates read one or the other
    if (variables.is_object() && variables.contains(name)) {
      throw invalid_request("chat_template_kwargs." + name,
                            "'chat_template_kwargs." + name + "' and 'thinking' cannot be used together");
    }
    variables[name] = type != "disabled";
  }
}

// `thinks`: whether the model can think, so that an effort has an effect.
void read_output_config(const Json& config, bool thinks, MessagesRequest* request, Json* chat) {
  FieldReader fields(config, "output_config");
  if (fields.find("effort") != nullptr) {
    const std::string effort = read_word(fields, "effort", {"low", "medium", "high", "xhigh", "max"});
    if (thinks) (*chat)["reasoning_effort"] = effort;
  }
  const Json* format = fields.object("format");
  fields.finish();
  if (format == nullptr) return;
  FieldReader inner(*format, "output_config.format");
  read_word(inner, "type", {"json_schema"});
  const Json& schema = inner.required_object("schema");
  inner.finish();
  (*chat)["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "output"}, {"strict", true}, {"schema", schema}}}};
  request->names.add("response_format.json_schema", "output_config.format");
}

// Checks `context_management`. This server never edits a conversation, so it accepts the edit that keeps everything.
void read_context_management(const Json& management) {
  FieldReader fields(management, "context_management");
  const Json* edits = fields.array("edits");
  fields.finish();
  for (size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    FieldReader edit((*edits)[i], element("context_management.edits", i));
    read_word(edit, "type", {"clear_thinking_20251015"});
    edit.only_default("keep", {"all"});
    edit.finish();
  }
}

void read_metadata(const Json& metadata) {
  FieldReader fields(metadata, "metadata");
  fields.string("user_id");
  fields.finish();
}

// Returns the body of a chat request. `body` is kMessages or kCountTokens.
Json chat_body(FieldReader& fields, Body body, const Engine& engine, MessagesRequest* request) {
  Json chat = Json::object();
  for (const openai::FieldRow& row : openai::field_table()) {
    if (row.use != openai::FieldUse::kHonoured || !row.is_of(Body::kChat) || !row.is_of(body)) continue;
    for (const std::string& name : field_names(row)) {
      if (const Json* value = fields.find(name)) chat[name] = *value;
    }
  }
  read_table_fields(fields, body);
  fields.object("chat_template_kwargs");
  CacheMarks marks;
  HistoryReader history(request, &marks);
  marks.read(fields);
  if (const Json* system = fields.find("system")) history.add_system(*system, "system");
  fields.required("messages");
  const Json& messages = *fields.array("messages");
  if (messages.empty()) throw invalid_request("messages", "'messages': expected at least one message, found none");
  for (size_t i = 0; i < messages.size(); ++i) history.add_message(messages[i], element("messages", i));
  chat["messages"] = history.take();
  int64_t max_tokens = -1;
  if (body == Body::kMessages) {
    fields.required("max_tokens");
    chat["max_tokens"] = max_tokens = fields.integer("max_tokens", 0);
    if (const Json* stop = fields.array("stop_sequences")) chat["stop"] = *stop;
    request->names.add("stop", "stop_sequences");
    if (const Json* metadata = fields.object("metadata")) read_metadata(*metadata);
  }
  if (const Json* tools = fields.array("tools")) read_tools(*tools, request, &marks, &chat);
  if (const Json* choice = fields.object("tool_choice")) read_tool_choice(*choice, request, &chat);
  if (const Json* thinking = fields.object("thinking")) read_thinking(*thinking, max_tokens, request, &chat);
  if (const Json* config = fields.object("output_config")) {
    read_output_config(*config, openai::reasoning_form(engine).has_value(), request, &chat);
  }
  if (const Json* management = fields.object("context_management")) read_context_management(*management);
  fields.finish();
  request->cache_ttl = marks.ttl();
  if (!request->cache_ttl.empty() && !chat.contains("retention")) {
    chat["retention"] = {{"ttl_seconds", request->cache_ttl == "1h" ? 3600 : 300}};
  }
  return chat;
}

}  // namespace

MessagesRequest parse_messages(std::string_view body, const openai::ServedModel& model) {
  const Json json = openai::parse_body(body);
  FieldReader fields(json, &openai::body_schema(Body::kMessages));
  MessagesRequest request{.chat = {}, .names = {}, .signer = ThinkingSigner(model.signing_key)};
  const Json chat = chat_body(fields, Body::kMessages, model.engine, &request);
  try {
    request.chat = openai::read_chat(chat, model);
  } catch (const ApiError& error) {
    throw request.names.outer(error);
  }
  request.chat.id = openai::make_id("msg_");
  request.chat.generations.front().id = request.chat.id;
  return request;
}

Json count_tokens(std::string_view body, const openai::ServedModel& model) {
  const Json json = openai::parse_body(body);
  FieldReader fields(json, &openai::body_schema(Body::kCountTokens));
  MessagesRequest request{.chat = {}, .names = {}, .signer = ThinkingSigner(model.signing_key)};
  const Json chat = chat_body(fields, Body::kCountTokens, model.engine, &request);
  try {
    FieldReader chat_fields(chat, &openai::body_schema(Body::kChat));
    openai::read_model(chat_fields, model, &request.chat);
    const openai::ChatPrompt prompt = openai::read_chat_prompt(chat_fields, model);
    return {{"input_tokens", openai::encode_chat(model.engine.tokenizer(), prompt.text).size()}};
  } catch (const ApiError& error) {
    throw request.names.outer(error);
  }
}

}  // namespace smartkv::anthropic
