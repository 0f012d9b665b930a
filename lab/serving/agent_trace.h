// Traces of agents: requests of many conversations, which `smartkv bench agents` sends to a server. A file has one
// request on each line, as a JSON object (docs/use/agent_benchmark.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

// Thrown for a trace or log that cannot be read. The message has a line for each line of the file that is wrong, which
// names the field, what was expected and what was found.
class TraceError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Limits of numbers in a trace.
inline constexpr int64_t kMostTraceTokens = int64_t{1} << 30;
inline constexpr double kMostTraceSeconds = 1e9;

struct AgentMessage {
  std::string role, content;  // the role is "system", "user" or "assistant"

  bool operator==(const AgentMessage&) const = default;
};

// One request. The prompt is the session's conversation so far, which includes the server's replies, and what this
// request adds to it.
struct AgentTurn {
  std::string session;
  // When it is sent: seconds since the trace began, or since the session's previous request ended. A request with
  // neither takes its turn: it is sent after those that became ready before it. No request is sent before the session's
  // previous one has ended.
  std::optional<double> time_s, think_s;
  // The first messages of the conversation, replies included, that stay; the others are dropped. Nullopt if all stay.
  std::optional<int64_t> keep;
  std::vector<AgentMessage> messages;  // what the request adds
  // Instead of messages: the length of a user's message to add. In a conversation without messages it includes the
  // system message that all such sessions share.
  int64_t tokens = 0;
  int64_t output_tokens = 0;  // length of the reply

  bool operator==(const AgentTurn&) const = default;
};

// Parses the lines of a trace. Empty lines do not count. Throws TraceError.
std::vector<AgentTurn> parse_agent_trace(std::string_view text);

// Returns how many messages the request adds to a conversation of so many, without the reply.
int64_t added_messages(const AgentTurn& turn, int64_t conversation);

// Returns the line of a trace, without its end.
std::string trace_line(const AgentTurn& turn);

// Calls `parse` for the object on each line of `text` that is not empty. Throws one TraceError for all lines that are
// no objects, or for which it throws std::invalid_argument.
void for_each_json_line(std::string_view text, const std::function<void(const nlohmann::ordered_json&)>& parse);

// Returns what an error shows of a wrong value: the beginning of a scalar, else the kind.
std::string shown_value(const nlohmann::ordered_json& value);

}  // namespace smartkv
