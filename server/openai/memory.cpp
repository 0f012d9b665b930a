#include "server/openai/memory.h"

#include "server/openai/usage.h"

namespace smartkv::openai {

namespace {

const char* state_name(LiveSequence::State state) {
  switch (state) {
    case LiveSequence::State::kWaiting: return "waiting";
    case LiveSequence::State::kPrompt: return "prompt";
    case LiveSequence::State::kDecoding: return "decoding";
  }
  return "waiting";
}

Json sequence_json(const LiveSequence& live) {
  static constexpr double kShare = 0x1p-10;
  Json json = {{"id", live.id},
               {"choice", live.choice},
               {"state", state_name(live.state)},
               {"policy", live.policy},
               {"speculative", live.speculation},
               {"prompt_tokens", live.prompt_tokens},
               {"cached_tokens", live.cached_tokens},
               {"output_tokens", live.output_tokens},
               {"computed_tokens", live.computed_tokens},
               {"preemptions", live.preemptions},
               {"bytes", live.cache.bytes},
               {"shared_bytes", live.cache.shared_bytes},
               {"full_bytes", live.cache.full_bytes},
               {"draft_bytes", live.draft_bytes},
               {"tokens", tiers_json(live.tiers, kTierTokens)},
               {"spans", Json::array()}};
  for (const TierSpan& span : live.spans) {
    json["spans"].push_back({{"first", span.first}, {"end", span.end}, {"tiers", tiers_json(span.shares, kShare)}});
  }
  return json;
}

std::string field_of(const Json& body) {
  if (body.contains("messages") && body.contains("prompt")) {
    throw invalid_request("messages", "'prompt' and 'messages' cannot be used together");
  }
  return body.contains("messages") ? "messages" : "prompt";
}

}  // namespace

Json live_json(const std::vector<LiveSequence>& sequences, const EngineStats& stats, std::optional<int64_t> layer) {
  Json data = Json::array();
  for (const LiveSequence& live : sequences) data.push_back(sequence_json(live));
  return {{"object", "list"},
          {"bytes", stats.kv_bytes_used},
          {"prefix_cache_bytes", stats.prefix_cache_bytes},
          {"budget_bytes", stats.kv_bytes_budget},
          {"layer", layer ? Json(*layer) : Json(nullptr)},
          {"data", std::move(data)}};
}

Json prefixes_json(const std::vector<PrefixListing>& prefixes, const EngineStats& stats) {
  Json data = Json::array();
  for (const PrefixListing& prefix : prefixes) {
    Json where = Json::array();
    if (prefix.in_memory) where.push_back("memory");
    if (prefix.in_file) where.push_back("file");
    Json policy = Json::parse(prefix.policy, nullptr, false);
    if (policy.is_discarded()) policy = prefix.policy;  // of a draft's cache
    data.push_back({{"kv_cache", std::move(policy)},
                    {"where", std::move(where)},
                    {"tokens", prefix.tokens},
                    {"bytes", prefix.bytes},
                    {"freed_bytes", prefix.freed_bytes},
                    {"idle_requests", prefix.idle_requests},
                    {"value", prefix.value}});
  }
  return {{"object", "list"},
          {"states", stats.prefix_cache_states},
          {"bytes", stats.prefix_cache_bytes},
          {"data", std::move(data)}};
}

Json plan_json(const MemoryPlan& plan) {
  return {{"kv_cache", plan.kv_cache},         {"policy", plan.policy.empty() ? Json(nullptr) : Json(plan.policy)},
          {"fits", plan.problem.empty()},      {"reason", plan.problem.empty() ? Json(nullptr) : Json(plan.problem)},
          {"prompt_bytes", plan.prompt_bytes}, {"final_bytes", plan.final_bytes},
          {"max_bytes", plan.max_bytes},       {"output_tokens", plan.output_tokens},
          {"sequences", plan.sequences}};
}

Json plan(std::string_view body, const ServedModel& model) {
  const Json json = parse_body(body);
  if (!json.is_object()) throw wrong_type("", "an object", json);
  const ApiRequest request = field_of(json) == "messages" ? parse_chat(body, model) : parse_completion(body, model);
  Json data = Json::array();
  for (const GenerationRequest& generation : request.generations) {
    Json plans = Json::array();
    try {
      for (const MemoryPlan& one : model.engine.plan(generation)) plans.push_back(plan_json(one));
    } catch (const RequestError& error) {
      throw to_api_error(error);
    }
    data.push_back({{"prompt_tokens", generation.prompt.size()},
                    {"max_tokens", generation.max_tokens},
                    {"n", generation.n},
                    {"plans", std::move(plans)}});
  }
  return {{"object", "plan"},
          {"model", request.model},
          {"context_length", model.engine.context_length()},
          {"kv_cache_bytes", model.engine.stats().kv_bytes_budget},
          {"data", std::move(data)}};
}

}  // namespace smartkv::openai
