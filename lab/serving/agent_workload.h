// The workload of `smartkv bench agents`: sessions of given lengths, and the texts that fill them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"
#include "lab/serving/agent_trace.h"

namespace smartkv {

// Sessions of equal length. The first turn of a session has start_tokens. Each later one adds turn_tokens to the
// conversation and the reply to the turn before.
struct AgentWorkload {
  int64_t sessions = 12, turns = 3;
  int64_t start_tokens = 3800, turn_tokens = 375, reply_tokens = 48;
};

// Returns the requests of the workload, by lengths, turn after turn: the first turn of all sessions, then the second.
std::vector<AgentTurn> synthetic_turns(const AgentWorkload& workload);

// Gives each request that has only a length a text of that length, out of the texts that ship with the program. The
// same requests get the same texts. Sessions that begin with a length share a system message of `shared_tokens` tokens
// and differ from there on. Throws std::invalid_argument if such a session begins with fewer tokens than that.
void write_texts(const Tokenizer& tokenizer, int64_t shared_tokens, std::vector<AgentTurn>* turns);

// Returns about how many tokens the longest conversation has with its reply. REQUIRES: every request has its messages.
int64_t longest_conversation(const Tokenizer& tokenizer, const std::vector<AgentTurn>& turns);

}  // namespace smartkv
