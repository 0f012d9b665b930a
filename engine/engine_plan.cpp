// Predicts the memory that a request would take, without running it.
#include "engine/engine_impl.h"
#include "engine/memory_plan.h"
#include "engine/request_checks.h"

namespace smartkv {

std::vector<MemoryPlan> EngineImpl::plan(const GenerationRequest& request) const {
  std::string too_long;
  try {
    check_request(request, {vocabulary_, context_length(), parts_.options.max_sequences});
  } catch (const RequestError& error) {
    if (error.kind != RequestError::Kind::kContextLength) throw;
    too_long = error.what();
  }
  check_allowed(request, parts_.options);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t room = std::max<int64_t>(0, context_length() - prompt_tokens);
  const auto speculation = speculation_for(request.speculative);
  const bool offload = offloads(speculation.get());
  const PlanQuestion question{.prompt_tokens = prompt_tokens,
                              .output_tokens = std::min(request.max_tokens, room),
                              .to_the_end = request.max_tokens >= room,
                              .offloads = offload};
  const PlanMemory memory{.kv_cache_bytes = parts_.options.kv_cache_bytes,
                          .row_bytes = config().vocab_size * static_cast<int64_t>(sizeof(float)),
                          .kv_offload_bytes = parts_.options.kv_offload_bytes};
  const KvCachePolicy* draft = speculation == nullptr ? nullptr : speculation->policy.get();
  const auto plan_for = [&](const nlohmann::json& spec) {
    const auto policy = policy_beside(spec, speculation.get());
    MemoryPlan plan = plan_memory(*policy, draft, question, memory);
    if (plan.problem.empty() && too_long.empty()) plan.problem = memory_problem(request, *policy, speculation.get());
    plan.kv_cache = spec.is_null() ? parts_.options.kv_cache : spec;
    if (plan.kv_cache.is_null()) plan.kv_cache = plan.policy;
    if (!too_long.empty()) plan.problem = too_long;
    return plan;
  };
  std::vector<MemoryPlan> plans = {plan_for(request.kv_cache)};
  for (const std::string& name : plannable_names(parts_.options.allowed_policies)) {
    try {
      plans.push_back(plan_for(name));
    } catch (const RequestError& error) {  // the policy cannot be used with this model
      MemoryPlan& none = plans.emplace_back();
      none.kv_cache = name;
      none.problem = error.what();
    }
  }
  return plans;
}

}  // namespace smartkv
