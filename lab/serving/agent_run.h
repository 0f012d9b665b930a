// Sends the requests of agents to a server, over real connections, and summarizes what came back.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/serving/agent_trace.h"
#include "lab/serving/load_client.h"

namespace smartkv {

// Messages of each session so far, with the server's replies.
using AgentConversations = std::map<std::string, std::vector<AgentMessage>>;

struct AgentRunOptions {
  int64_t at_once = 4;  // requests that are under way at the same time
  bool ignore_times = false;
  // Name of the field that makes a reply reach its length. It is set to the length if it is "min_tokens", else to true.
  std::string length_field = "min_tokens";
};

// The result of one request. Times are seconds since the run began; those of the outcome, since it was sent.
struct AgentTurnResult {
  const AgentTurn* turn = nullptr;  // not owned
  double sent_s = 0, ended_s = 0;
  RequestOutcome outcome;
};

// Sends the requests to /v1/chat/completions, streamed and greedy, and adds messages and replies to `conversations`.
// Requests that are ready go out in the order in which they became so. If a request fails, the later ones of its
// session fail with it. Returns the results in the order in which they ended.
std::vector<AgentTurnResult> run_agents(const LoadClient& client, std::span<const AgentTurn> turns,
                                        const AgentRunOptions& options, AgentConversations* conversations);

struct AgentSummary {
  int64_t turns = 0, failed = 0;  // requests; those that failed count in both, and in nothing else
  std::string failure;            // of the first one that failed
  double wall_s = 0;              // until the last request ended
  double turns_per_min = 0;
  double first_token_p50_s = 0, first_token_p95_s = 0;  // since the request was sent
  int64_t prompt_tokens = 0, cached_tokens = 0;

  double found() const;  // share of the prompt tokens that the server did not compute
};

AgentSummary summarize_agents(std::span<const AgentTurnResult> results);

}  // namespace smartkv
