// What sequences of some length would take under a policy, from the policy's own bounds: nothing is computed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

class KvCachePolicy;

// Drafted tokens of one pass: bounds the logits that verify them.
constexpr int64_t kMostDraftRows = 64;

// Bytes of KV cache that a sequence may come to hold when it grows to n_tokens, drafts included. `draft`: of the cache that
// they are computed with; null: none. offloads: the draft's only, the other is in memory of its own.
int64_t most_cache_bytes(const KvCachePolicy& policy, const KvCachePolicy* draft, bool offloads, int64_t prompt_tokens, int64_t n_tokens);

struct PlanQuestion {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;  // at most
  bool to_the_end = false;    // the output may end where memory does
  int64_t sequences = 1;      // side by side
  bool offloads = false;      // as for most_cache_bytes()
};

struct PlanMemory {
  int64_t kv_cache_bytes = 0;
  int64_t row_bytes = 0;  // of a sequence's logits, which come out of it, too
  int64_t kv_offload_bytes = 0;
};

// Bytes are upper bounds, of one sequence with its logits, without what it offloads.
struct MemoryPlan {
  nlohmann::json kv_cache;    // as a request names the policy
  std::string policy;         // empty: it cannot be made for this model
  std::string problem;        // why it does not fit; empty: it does
  int64_t prompt_bytes = 0;   // until the first token is there
  int64_t final_bytes = 0;    // at the end of the output, the prompt long computed
  int64_t max_bytes = 0;      // at any moment
  int64_t output_tokens = 0;  // of those asked for, as many as memory has room for when it runs alone
  int64_t sequences = 0;      // such as it that fit side by side while one computes its prompt
};

// `draft`: as for most_cache_bytes().
MemoryPlan plan_memory(const KvCachePolicy& policy, const KvCachePolicy* draft, const PlanQuestion& question, const PlanMemory& memory);

// The names that policy_presets() and policy_registry() know, in their order, less those that `allowed` (empty: all) lacks.
std::vector<std::string> plannable_names(const std::vector<std::string>& allowed);

}  // namespace smartkv
