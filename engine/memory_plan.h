// Predicts the memory of sequences of a given length under a policy. The numbers come from the policy's own bounds; no
// tokens are computed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

class KvCachePolicy;

// The most drafted tokens in one pass. Bounds the logits rows that verify them.
constexpr int64_t kMostDraftRows = 64;

// Returns the most bytes of KV cache that a sequence may hold at any moment while it grows to n_tokens, drafts
// included. `draft` is the policy of the cache that drafts are computed with; null if there is none. If the sequence
// `offloads`, its own cache is in the host's memory and only the draft's counts.
int64_t most_cache_bytes(const KvCachePolicy& policy, const KvCachePolicy* draft, bool offloads, int64_t prompt_tokens,
                         int64_t n_tokens);

// The length and number of the sequences to plan for.
struct PlanQuestion {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // at most
  bool to_the_end = false;    // whether the output may end early if memory runs out
  int64_t sequences = 1;      // that shall run side by side
  bool offloads = false;      // as for most_cache_bytes()
};

// The memory that the sequences share.
struct PlanMemory {
  int64_t kv_cache_bytes = 0;
  int64_t row_bytes = 0;  // bytes of a sequence's row of logits, which are taken from kv_cache_bytes, too
  int64_t kv_offload_bytes = 0;
};

// All bytes are upper bounds for one sequence. They include its row of logits but not the memory that it offloads.
struct MemoryPlan {
  nlohmann::json kv_cache;    // the policy as a request names it
  std::string policy;         // the policy's own name; empty if it cannot be used with this model
  std::string problem;        // why the sequences do not fit; empty if they do
  int64_t prompt_bytes = 0;   // most bytes until the first output token is there
  int64_t final_bytes = 0;    // most bytes at the end of the output, when the prompt's transient memory is free
  int64_t max_bytes = 0;      // most bytes at any moment
  int64_t output_tokens = 0;  // of the requested output tokens, as many as fit if the sequence runs alone
  int64_t sequences = 0;      // how many such sequences fit side by side while one of them computes its prompt
};

// Returns the plan for sequences under a policy, without MemoryPlan::kv_cache. `draft` is as for most_cache_bytes().
MemoryPlan plan_memory(const KvCachePolicy& policy, const KvCachePolicy* draft, const PlanQuestion& question,
                       const PlanMemory& memory);

// Returns the names of policy_presets(), then those of policy_registry(), in their order. If `allowed` is not empty,
// names that it lacks are left out.
std::vector<std::string> plannable_names(const std::vector<std::string>& allowed);

}  // namespace smartkv
