#include "lab/serving/agent_trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "server/openai/json_body.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownErrors = 20, kShownCharacters = 60;
constexpr std::array<const char*, 3> kRoles = {"system", "user", "assistant"};
constexpr std::array<const char*, 7> kTurnFields = {"session",  "time_s", "think_s",      "keep",
                                                    "messages", "tokens", "output_tokens"};
constexpr std::array<const char*, 2> kMessageFields = {"role", "content"};

[[noreturn]] void refuse_field(const std::string& field, const std::string& expected, const Json* found) {
  throw std::invalid_argument(field + ": expected " + expected + ", found " + (found ? shown_value(*found) : "none"));
}

const Json* trace_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

template <size_t n>
std::string listed_names(const std::array<const char*, n>& names) {
  std::string text;
  for (const char* name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

template <size_t n>
void check_fields(const Json& object, const std::string& where, const std::array<const char*, n>& known) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) == known.end()) {
      throw std::invalid_argument(where + key.substr(0, kShownCharacters) + ": expected one of the fields " +
                                  listed_names(known));
    }
  }
}

int64_t whole_number(const Json& object, const char* field, int64_t least) {
  const Json* value = trace_member(object, field);
  const bool fits = value != nullptr && value->is_number_integer() && *value >= least && *value <= kMostTraceTokens;
  if (!fits)
    refuse_field(field, "an integer from " + std::to_string(least) + " to " + std::to_string(kMostTraceTokens), value);
  return value->get<int64_t>();
}

std::optional<double> trace_seconds(const Json& object, const char* field) {
  const Json* value = trace_member(object, field);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!(number >= 0 && number <= kMostTraceSeconds)) refuse_field(field, "seconds from 0 to 1e9", value);
  return number;
}

AgentMessage trace_message(const Json& value, const std::string& where) {
  if (!value.is_object()) refuse_field(where, "an object", &value);
  check_fields(value, where + ".", kMessageFields);
  const Json *role = trace_member(value, "role"), *content = trace_member(value, "content");
  const auto is_role = [&](const char* one) { return role != nullptr && *role == one; };
  if (std::ranges::none_of(kRoles, is_role)) refuse_field(where + ".role", "one of " + listed_names(kRoles), role);
  if (content == nullptr || !content->is_string()) refuse_field(where + ".content", "a string", content);
  return {role->get<std::string>(), content->get<std::string>()};
}

// Parses a request. `conversation` is the number of messages that its session has so far.
AgentTurn trace_turn(const Json& object, int64_t conversation) {
  AgentTurn turn;
  turn.session = object.at("session").get<std::string>();
  turn.time_s = trace_seconds(object, "time_s");
  turn.think_s = trace_seconds(object, "think_s");
  if (turn.time_s && turn.think_s) throw std::invalid_argument("think_s: expected none beside time_s");
  if (object.contains("keep")) {
    turn.keep = whole_number(object, "keep", 0);
    if (*turn.keep > conversation) {
      throw std::invalid_argument("keep: expected at most " + std::to_string(conversation) +
                                  ", the messages and replies of the session so far, found " +
                                  std::to_string(*turn.keep));
    }
  }
  const Json* messages = trace_member(object, "messages");
  if ((messages == nullptr) == !object.contains("tokens")) {
    throw std::invalid_argument("messages: expected either messages or tokens");
  }
  if (messages == nullptr) {
    turn.tokens = whole_number(object, "tokens", 1);
  } else {
    if (!messages->is_array()) refuse_field("messages", "an array", messages);
    for (size_t i = 0; i < messages->size(); ++i) {
      turn.messages.push_back(trace_message((*messages)[i], "messages[" + std::to_string(i) + "]"));
    }
    if (messages->empty() && turn.keep.value_or(conversation) == 0) {
      throw std::invalid_argument("messages: expected at least one in a conversation without any");
    }
  }
  turn.output_tokens = whole_number(object, "output_tokens", 1);
  return turn;
}

Json line_object(std::string_view line) {
  Json object;
  try {
    object = openai::parse_json(line);
  } catch (const openai::JsonSyntaxError& error) {
    throw std::invalid_argument(std::string("expected a JSON object: ") + error.what());
  }
  if (!object.is_object()) throw std::invalid_argument("expected a JSON object, found " + shown_value(object));
  return object;
}

}  // namespace

std::string shown_value(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= kShownCharacters ? text : text.substr(0, kShownCharacters) + "...";
}

void for_each_json_line(std::string_view text, const std::function<void(const Json&)>& parse) {
  std::string message;
  size_t errors = 0;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    try {
      parse(line_object(line));
    } catch (const std::invalid_argument& error) {
      if (errors++ < kShownErrors) message += "line " + std::to_string(number) + ": " + error.what() + "\n";
    }
  }
  if (errors == 0) return;
  if (errors > kShownErrors) message += "and " + std::to_string(errors - kShownErrors) + " more lines\n";
  message.pop_back();
  throw TraceError(message);
}

std::vector<AgentTurn> parse_agent_trace(std::string_view text) {
  std::vector<AgentTurn> turns;
  std::map<std::string, int64_t> conversations;  // number of messages, replies included
  for_each_json_line(text, [&](const Json& object) {
    check_fields(object, "", kTurnFields);
    const Json* session = trace_member(object, "session");
    if (session == nullptr || !session->is_string() || *session == "") refuse_field("session", "a name", session);
    int64_t& conversation = conversations[session->get<std::string>()];
    AgentTurn turn = trace_turn(object, conversation);
    conversation = turn.keep.value_or(conversation) + added_messages(turn, conversation) + 1;
    turns.push_back(std::move(turn));
  });
  if (turns.empty()) throw TraceError("expected at least one line");
  return turns;
}

int64_t added_messages(const AgentTurn& turn, int64_t conversation) {
  if (turn.tokens == 0) return static_cast<int64_t>(turn.messages.size());
  return turn.keep.value_or(conversation) == 0 ? 2 : 1;
}

std::string trace_line(const AgentTurn& turn) {
  Json line = {{"session", turn.session}};
  if (turn.time_s) line["time_s"] = *turn.time_s;
  if (turn.think_s) line["think_s"] = *turn.think_s;
  if (turn.keep) line["keep"] = *turn.keep;
  if (turn.tokens > 0) {
    line["tokens"] = turn.tokens;
  } else {
    line["messages"] = Json::array();
    for (const AgentMessage& message : turn.messages) {
      line["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
  }
  line["output_tokens"] = turn.output_tokens;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace smartkv
