#include "engine/memory_plan.h"

#include <algorithm>

#include "cache/policy.h"
#include "cache/presets.h"
#include "engine/request_checks.h"

namespace smartkv {
namespace {

// Returns a message: the sequences together may need `bytes` bytes of `what`, but `option` provides only `available`.
std::string shortage(int64_t sequences, int64_t bytes, const std::string& what, int64_t available,
                     const std::string& option) {
  const std::string who = sequences == 1 ? "one sequence" : std::to_string(sequences) + " sequences";
  return who + " may need " + std::to_string(bytes) + " bytes of " + what + ", but only " +
         std::to_string(std::max<int64_t>(0, available)) + " are available (" + option + ")";
}

}  // namespace

int64_t most_cache_bytes(const KvCachePolicy& policy, const KvCachePolicy* draft, bool offloads, int64_t prompt_tokens,
                         int64_t n_tokens) {
  return (offloads ? 0 : policy.max_bytes(prompt_tokens, n_tokens)) +
         (draft == nullptr ? 0 : draft->max_bytes(prompt_tokens, n_tokens));
}

MemoryPlan plan_memory(const KvCachePolicy& policy, const KvCachePolicy* draft, const PlanQuestion& question,
                       const PlanMemory& memory) {
  const auto bytes = [&](int64_t prompt, int64_t tokens) {
    return most_cache_bytes(policy, draft, question.offloads, prompt, tokens) + memory.row_bytes;
  };
  const int64_t prompt = question.prompt_tokens, wanted = question.output_tokens;
  const auto fits = [&](int64_t output) { return bytes(prompt, prompt + output) <= memory.kv_cache_bytes; };
  MemoryPlan plan;
  plan.policy = policy.name();
  plan.prompt_bytes = bytes(prompt, prompt + std::min<int64_t>(wanted, 1));
  plan.final_bytes = bytes(0, prompt + wanted);
  plan.max_bytes = bytes(prompt, prompt + wanted);
  int64_t low = 0, high = wanted;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  plan.output_tokens = low;
  const int64_t others = memory.kv_cache_bytes - plan.max_bytes;
  if (others >= 0) plan.sequences = 1 + others / std::max<int64_t>(1, plan.final_bytes);
  if (question.offloads) {
    const int64_t apart = policy.max_bytes(prompt, prompt + wanted),
                  room = memory.kv_offload_bytes / std::max<int64_t>(1, apart);
    plan.sequences = std::min(plan.sequences, room);
    if (room < question.sequences) {
      plan.problem = shortage(question.sequences, question.sequences * apart, "host memory", memory.kv_offload_bytes,
                              "kv_offload_bytes");
      return plan;
    }
  }
  const bool ends_early = question.to_the_end && question.sequences == 1 && fits(std::min<int64_t>(wanted, 1));
  if (plan.sequences < question.sequences && !ends_early) {
    const int64_t who = plan.sequences == 0 ? 1 : question.sequences;  // 0: not even one fits
    plan.problem = shortage(who, plan.max_bytes + (who - 1) * plan.final_bytes, "KV cache", memory.kv_cache_bytes,
                            "kv_cache_bytes");
  }
  return plan;
}

std::vector<std::string> plannable_names(const std::vector<std::string>& allowed) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view name) {
    if (allows(allowed, name)) names.emplace_back(name);
  };
  for (const PolicyPreset& preset : policy_presets()) add(preset.name);
  for (const PolicyRow& row : policy_registry()) add(row.name);
  return names;
}

}  // namespace smartkv
