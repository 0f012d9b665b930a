#include "server/openai/usage.h"

#include <algorithm>
#include <cmath>

namespace smartkv::openai {

namespace {

double per_second(int64_t count, double ms) { return ms > 0 ? 1000.0 * static_cast<double>(count) / ms : 0; }

// details: of the sequence, which say what shadow mode saw of the promise.
Json promise_json(const KeptPromise& promise, const std::map<std::string, double>& details) {
  Json json = {{"max_kl", promise.max_kl},
               {"kl", promise.point.kl},
               {"perplexity_percent", promise.point.perplexity_percent},
               {"bytes_per_token", promise.point.bytes_per_token}};
  if (details.contains("promise_judged")) {
    json["kept"] = details.at("promise_broken") == 0;
    json["steps"] = static_cast<int64_t>(details.at("promise_steps"));
  }
  return json;
}

}  // namespace

Json tiers_json(const TierShares& tiers, double unit) {
  Json json = Json::object();
  for (size_t tier = 0; tier < kTiers; ++tier) {
    if (const double rounded = std::round(tiers[tier] / unit) * unit; rounded > 0)
      json[std::string(tier_name(tier))] = rounded;
  }
  return json;
}

Json prefix_json(const RequestUsage& usage) {
  Json json = {{"cached_tokens", usage.cached_tokens}};
  if (usage.prefix_miss.empty()) return json;
  json["miss"] = usage.prefix_miss;
  json["diverged_at"] = usage.diverged_at;
  if (usage.diverged_message >= 0) json["diverged_message"] = usage.diverged_message;
  return json;
}

Json usage_json(const RequestUsage& usage) {
  const SpeculationUsage& speculation = usage.speculation;
  const KvCacheUsage& cache = usage.kv_cache;
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", prefix_json(usage)},
               {"completion_tokens_details",
                {{"reasoning_tokens", usage.reasoning_tokens},
                 {"audio_tokens", 0},
                 {"accepted_prediction_tokens", speculation.accepted},
                 {"rejected_prediction_tokens", speculation.drafted - speculation.accepted}}},
               {"kv_cache",
                {{"policy", cache.policy},
                 {"spec", cache.spec},
                 {"tokens", cache.tokens},
                 {"tokens_kept", cache.tokens_kept},
                 {"bytes", cache.bytes},
                 {"shared_bytes", cache.shared_bytes},
                 {"full_bytes", cache.full_bytes},
                 {"tiers", tiers_json(cache.tiers.tokens, kTierTokens)}}},
               {"seed", usage.seed}};
  json["prompt_tokens_details"]["audio_tokens"] = 0;
  if (!cache.details.empty()) json["kv_cache"]["details"] = cache.details;
  if (!cache.stand_in.empty()) json["kv_cache"]["stand_in"] = cache.stand_in;
  if (cache.promise) json["kv_cache"]["promise"] = promise_json(*cache.promise, cache.details);
  if (speculation.method != "off") {
    json["speculative"] = {{"method", speculation.method},
                           {"drafted", speculation.drafted},
                           {"accepted", speculation.accepted},
                           {"passes", speculation.passes},
                           {"rewinds", speculation.rewinds},
                           {"rewound_tokens", speculation.rewound_tokens},
                           {"fallbacks", speculation.fallbacks},
                           {"exact", speculation.exact},
                           {"accepted_per_position", speculation.accepted_at},
                           {"draft_ms", speculation.draft_ms}};
    if (speculation.drafted > 0) {
      json["speculative"]["acceptance_rate"] =
          static_cast<double>(speculation.accepted) / static_cast<double>(speculation.drafted);
    }
  }
  return json;
}

Json timings_json(const RequestUsage& usage) {
  const RequestTimings& timings = usage.timings;
  const int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  return {
      {"queued_ms", timings.queued_ms},
      {"prefill_ms", timings.prefill_ms},
      {"decode_ms", timings.decode_ms},
      {"total_ms", timings.total_ms},
      {"model_ms", timings.model_ms},
      {"sample_ms", timings.sample_ms},
      {"prefill_chunks", timings.prefill_chunks},
      {"decode_passes", timings.decode_passes},
      {"preemptions", timings.preemptions},
      {"preempted_ms", timings.preempted_ms},
      {"recomputed_tokens", timings.recomputed_tokens},
      {"prefill_tokens_per_second", per_second(computed, timings.prefill_ms)},
      // The first token is the result of the prefill.
      {"decode_tokens_per_second", per_second(std::max<int64_t>(0, usage.completion_tokens - 1), timings.decode_ms)}};
}

}  // namespace smartkv::openai
