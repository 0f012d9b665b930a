#include "lab/serving/agent_log.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;
using Conversation = std::vector<AgentMessage>;

constexpr int64_t kBytesPerToken = 4;  // about, for replies without usage

[[noreturn]] void refuse_log(const std::string& field, const std::string& expected, const Json* found) {
  throw std::invalid_argument(field + ": expected " + expected + ", found " + (found ? shown_value(*found) : "none"));
}

// Returns a member, or null if it is absent or null.
const Json* log_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string compact_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

void append_part(std::string* text, const std::string& part) {
  if (!text->empty() && !part.empty()) *text += "\n\n";
  *text += part;
}

std::string content_text(const Json* content, const std::string& where);

// Returns the text of a part of a message's content.
std::string part_text(const Json& part, const std::string& where) {
  if (!part.is_object()) refuse_log(where, "an object", &part);
  const Json* type = log_member(part, "type");
  if (type == nullptr || !type->is_string()) refuse_log(where + ".type", "a string", type);
  if (*type == "thinking" || *type == "redacted_thinking") return "";  // no part of later prompts
  if (*type == "tool_result") return content_text(log_member(part, "content"), where + ".content");
  if (*type == "tool_use") {
    const Json *name = log_member(part, "name"), *input = log_member(part, "input");
    return compact_json({{"name", name ? *name : Json()}, {"arguments", input ? *input : Json()}});
  }
  const Json* text = log_member(part, "text");
  if (text == nullptr) return "[" + type->get<std::string>() + "]";
  if (!text->is_string()) refuse_log(where + ".text", "a string", text);
  return text->get<std::string>();
}

std::string content_text(const Json* content, const std::string& where) {
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) refuse_log(where, "a string or an array", content);
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    append_part(&text, part_text((*content)[i], where + "[" + std::to_string(i) + "]"));
  }
  return text;
}

// Returns the calls of an assistant's message in OpenAI's form.
std::string calls_text(const Json& message, const std::string& where) {
  const Json* calls = log_member(message, "tool_calls");
  if (calls == nullptr) return "";
  if (!calls->is_array()) refuse_log(where + ".tool_calls", "an array", calls);
  std::string text;
  for (const Json& call : *calls) {
    const Json* function = call.is_object() ? log_member(call, "function") : nullptr;
    append_part(&text, compact_json(function ? *function : call));
  }
  return text;
}

std::string log_role(const Json& message, const std::string& where) {
  const Json* role = log_member(message, "role");
  if (role != nullptr && (*role == "system" || *role == "developer")) return "system";
  if (role != nullptr && (*role == "user" || *role == "tool" || *role == "function")) return "user";
  if (role != nullptr && *role == "assistant") return "assistant";
  refuse_log(where + ".role", "system, developer, user, assistant, tool or function", role);
}

// Returns the content of a message, then its calls.
std::string message_text(const Json& message, const std::string& where) {
  std::string text = content_text(log_member(message, "content"), where + ".content");
  append_part(&text, calls_text(message, where));
  return text;
}

void append_message(Conversation* conversation, AgentMessage message) {
  if (conversation->empty() || conversation->back().role != message.role) {
    conversation->push_back(std::move(message));
  } else {
    append_part(&conversation->back().content, message.content);
  }
}

Conversation conversation_of(const Json& request) {
  Conversation conversation;
  std::string system = content_text(log_member(request, "system"), "request.system");
  if (const Json* tools = log_member(request, "tools")) append_part(&system, compact_json(*tools));
  if (!system.empty()) append_message(&conversation, {"system", system});
  const Json* messages = log_member(request, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    refuse_log("request.messages", "an array with a message", messages);
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string where = "request.messages[" + std::to_string(i) + "]";
    if (!message.is_object()) refuse_log(where, "an object", &message);
    append_message(&conversation, {log_role(message, where), message_text(message, where)});
  }
  return conversation;
}

// Returns the text of the reply: of the first choice (OpenAI), or the content (Anthropic).
std::string reply_of(const Json& response) {
  const Json* choices = log_member(response, "choices");
  if (choices == nullptr) return content_text(log_member(response, "content"), "response.content");
  const Json* first = choices->is_array() && !choices->empty() ? &choices->front() : nullptr;
  const Json* message = first != nullptr && first->is_object() ? log_member(*first, "message") : nullptr;
  const bool usable = message != nullptr && message->is_object();
  return usable ? message_text(*message, "response.choices[0].message") : "";
}

// Returns the length of the reply in tokens, from usage or from its text.
int64_t reply_tokens(const Json* response) {
  if (response == nullptr || !response->is_object()) refuse_log("response", "an object", response);
  if (const Json* usage = log_member(*response, "usage"); usage != nullptr && usage->is_object()) {
    for (const char* name : {"completion_tokens", "output_tokens"}) {
      const Json* tokens = log_member(*usage, name);
      if (tokens == nullptr) continue;
      const bool fits = tokens->is_number_integer() && *tokens >= 0 && *tokens <= kMostTraceTokens;
      if (!fits) refuse_log(std::string("response.usage.") + name, "a number of tokens", tokens);
      return std::max<int64_t>(1, tokens->get<int64_t>());
    }
  }
  const std::string reply = reply_of(*response);
  if (reply.empty()) throw std::invalid_argument("response: expected usage or a reply, found neither");
  return std::max<int64_t>(1, static_cast<int64_t>(reply.size()) / kBytesPerToken);
}

// Parses "2026-11-28T20:15:40.5Z" or with an offset such as "+02:00"; without either it is UTC. Returns seconds of the
// Unix epoch, or nullopt.
std::optional<double> date_and_time(const std::string& text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, read = 0;
  char between = 0;
  const int fields =
      std::sscanf(text.c_str(), "%4d-%2d-%2d%c%2d:%2d:%n", &year, &month, &day, &between, &hour, &minute, &read);
  if (fields != 6 || read == 0 || (between != 'T' && between != ' ')) return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  double second = 0;
  const auto [rest, error] = std::from_chars(text.data() + read, text.data() + text.size(), second);
  if (!date.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59) return std::nullopt;
  if (error != std::errc() || !(second >= 0 && second < 61)) return std::nullopt;
  const std::string zone(rest, text.data() + text.size());
  int offset_hours = 0, offset_minutes = 0;
  char sign = 0;
  if (std::sscanf(zone.c_str(), "%c%2d:%2d", &sign, &offset_hours, &offset_minutes) == 3) {
    if (zone.size() != 6 || (sign != '+' && sign != '-')) return std::nullopt;
  } else if (!zone.empty() && zone != "Z") {
    return std::nullopt;
  }
  const int offset = (sign == '-' ? -1 : 1) * (60 * offset_hours + offset_minutes);  // minutes
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  return 86400.0 * static_cast<double>(days) + 3600.0 * hour + 60.0 * (minute - offset) + second;
}

double time_of(const Json& time) {
  std::optional<double> seconds;
  if (time.is_number()) seconds = time.get<double>();
  if (time.is_string()) seconds = date_and_time(time.get<std::string>());
  if (!seconds) refuse_log("time", "seconds or a time such as \"2026-11-28T20:15:40Z\"", &time);
  return *seconds;
}

// A session as far as the log was read: the messages of its last request.
struct LoggedSession {
  std::string name;
  Conversation last;
};

// Returns how many of the messages a request has in common with the session, with the reply behind them if the request
// has an assistant's message there.
size_t common_messages(const LoggedSession& session, const Conversation& request) {
  size_t n = 0;
  while (n < std::min(session.last.size(), request.size()) && session.last[n] == request[n]) ++n;
  const bool goes_on = n > 0 && n == session.last.size() && n < request.size();
  return goes_on && request[n].role == "assistant" ? n + 1 : n;
}

class LogConverter {
 public:
  void add(const Json& line) {
    const Json* request = log_member(line, "request");
    if (request == nullptr || !request->is_object()) refuse_log("request", "an object", request);
    Conversation conversation = conversation_of(*request);
    AgentTurn turn;
    turn.output_tokens = reply_tokens(log_member(line, "response"));
    const Json *name = log_member(line, "session"), *time = log_member(line, "time");
    check_all_or_none("session", name != nullptr);
    check_all_or_none("time", time != nullptr);
    if (time != nullptr) {
      const double seconds = time_of(*time);
      if (turns_.empty()) began_ = seconds;
      turn.time_s = std::max(0.0, seconds - began_);
      if (*turn.time_s > kMostTraceSeconds) refuse_log("time", "a time near that of the first line", time);
    }
    LoggedSession& session = name != nullptr ? named(*name) : nearest(conversation);
    const size_t common = common_messages(session, conversation);
    turn.session = session.name;
    if (!session.last.empty() && common != session.last.size() + 1) turn.keep = static_cast<int64_t>(common);
    turn.messages.assign(conversation.begin() + static_cast<ptrdiff_t>(common), conversation.end());
    session.last = std::move(conversation);
    turns_.push_back(std::move(turn));
  }

  std::vector<AgentTurn> take() { return std::move(turns_); }

 private:
  // Throws std::invalid_argument if the field is on some lines only.
  void check_all_or_none(const std::string& field, bool here) {
    const auto [first, added] = present_.try_emplace(field, here);
    if (first->second != here) throw std::invalid_argument(field + ": expected on each line or on none");
  }

  LoggedSession& named(const Json& name) {
    if (!name.is_string() || name == "") refuse_log("session", "a name", &name);
    const auto text = name.get<std::string>();
    const auto found = std::ranges::find(sessions_, text, &LoggedSession::name);
    return found != sessions_.end() ? *found : sessions_.emplace_back(LoggedSession{text, {}});
  }

  // Returns the session that shares most messages with the request, the latest of several, or a new one.
  LoggedSession& nearest(const Conversation& request) {
    size_t most = request.front().role == "system" ? 1 : 0;
    LoggedSession* best = nullptr;
    for (LoggedSession& session : sessions_) {
      const size_t common = common_messages(session, request);
      if (common > most || (common == most && best != nullptr)) best = &session;
      most = std::max(most, common);
    }
    return best ? *best : sessions_.emplace_back(LoggedSession{std::to_string(sessions_.size() + 1), {}});
  }

  std::vector<LoggedSession> sessions_;
  std::vector<AgentTurn> turns_;
  std::map<std::string, bool> present_;
  double began_ = 0;
};

}  // namespace

std::vector<AgentTurn> convert_agent_log(std::string_view text) {
  LogConverter converter;
  for_each_json_line(text, [&](const Json& line) { converter.add(line); });
  std::vector<AgentTurn> turns = converter.take();
  if (turns.empty()) throw TraceError("expected at least one line");
  return turns;
}

}  // namespace smartkv
