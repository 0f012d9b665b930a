// Converts logs of requests to traces of agents (agent_trace.h).
#pragma once

#include <string_view>
#include <vector>

#include "lab/serving/agent_trace.h"

namespace smartkv {

// Parses a log: JSON Lines, each an object with
//  - "request": the body of a request to /v1/chat/completions (OpenAI) or /v1/messages (Anthropic);
//  - "response": the body of the response, not streamed, for the length of the reply;
//  - "time": when the request was sent, as seconds of the Unix epoch or "2026-11-28T20:15:40.5Z"; on each line or none;
//  - "session": the name of the session; on each line or none.
//
// Messages become text: tools, tool calls and their results as JSON; parts that are no text as "[image]". Neighbours of
// one role become one message. Without names, a request continues the session with which it shares most messages, if
// these are more than the system message. The assistant's message where the reply was is taken for the reply, whatever
// it says. Throws TraceError.
std::vector<AgentTurn> convert_agent_log(std::string_view text);

}  // namespace smartkv
