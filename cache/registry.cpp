#include <string>

#include "cache/parameters.h"
#include "cache/policies/block_summary/block_summary.h"
#include "cache/policies/channel_packed/channel_packed.h"
#include "cache/policies/full/full.h"
#include "cache/policies/gated_eviction/gated_eviction.h"
#include "cache/policies/mixed_precision/mixed_precision.h"
#include "cache/policies/random/random.h"
#include "cache/policies/snapkv/snapkv.h"
#include "cache/policies/sparse/sparse.h"
#include "cache/policies/streaming/streaming.h"
#include "cache/policies/uniform/uniform.h"
#include "cache/policy.h"
#include "cache/presets.h"
#include "cache/shadow/shadow_policy.h"

namespace smartkv {

const std::vector<PolicyRow>& policy_registry() {
  static const std::vector<PolicyRow> rows = {
      {"full", "every token, exact", make_full_policy, true},
      {"gated_eviction", "the tokens with the longest lifespan, as estimated by a learned gate",
       make_gated_eviction_policy},
      {"block_summary", "a window, and summaries of the tokens before it", make_block_summary_policy},
      {"mixed_precision", "every token, in 8 to 2 bits by importance, within a budget", make_mixed_precision_policy},
      {"channel_packed", "every token, without unimportant channels; a guard restores them if accuracy drops",
       make_channel_packed_policy},
      {"streaming", "sinks and a window", make_streaming_policy},
      {"random", "sinks, a window, and tokens drawn at random", make_random_policy},
      {"snapkv", "sinks, a window, and the tokens that the last queries attend to most", make_snapkv_policy},
      {"sparse", "every token, exact; each query reads the tokens of the highest estimated attention",
       make_sparse_policy},
      {"k8v8", "K and V in 8 bits", make_k8v8_policy, true},
      {"k8v4", "K in 8 bits, V in 4 bits", make_k8v4_policy, true},
      {"k4v4", "K and V in 4 bits", make_k4v4_policy, true},
      {"k3v3", "K and V in 3 bits", make_k3v3_policy, true},
      {"k2v2", "K and V in 2 bits", make_k2v2_policy, true},
  };
  return rows;
}

const std::vector<CacheMetric>& cache_metrics() {
  static const std::vector<CacheMetric> metrics = [] {
    std::vector<CacheMetric> all;
    for (const auto& declared : {block_summary_metrics(), channel_packed_metrics(), mixed_precision_metrics(), shadow_metrics()}) {
      all.insert(all.end(), declared.begin(), declared.end());
    }
    return all;
  }();
  return metrics;
}

namespace {

// Throws CacheError for a policy that a model with a sliding window cannot run.
void check_window(const SlidingWindow& window, const PolicyRow& row, double shadow) {
  if (window.tokens == 0 || (row.in_order && shadow == 0)) return;
  std::string expected;
  for (const PolicyRow& other : policy_registry()) {
    if (other.in_order) expected += std::string(other.name) + ", ";
  }
  throw CacheError("kv_cache: layers of this model attend to the last " + std::to_string(window.tokens) +
                   " tokens only (sliding_window): expected " + expected + "without shadow, or a context_length of at most " +
                   std::to_string(window.tokens) + "; found \"" + std::string(row.name) + "\"" +
                   (shadow > 0 ? " with shadow" : ", which does not keep tokens in order"));
}

}  // namespace

std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) {
  std::string name = "full";
  nlohmann::json parameters = nlohmann::json::object();
  if (spec.is_string()) {
    name = spec.get<std::string>();
  } else if (spec.is_object()) {
    parameters = spec;
    const auto policy = parameters.find("policy");
    if (policy == parameters.end() || !policy->is_string()) {
      throw CacheError("kv_cache.policy: expected the name of a policy, found " +
                       (policy == parameters.end() ? std::string("nothing") : policy->dump()));
    }
    name = policy->get<std::string>();
    parameters.erase(policy);
  } else if (!spec.is_null()) {
    throw CacheError("kv_cache: expected a policy's name or an object, found " + std::string(spec.type_name()));
  }
  for (const PolicyPreset& preset : policy_presets()) {
    if (preset.name != name) continue;
    nlohmann::json merged = preset.spec;  // Parameters given beside the preset's name override it.
    name = merged.at("policy").get<std::string>();
    merged.erase("policy");
    merged.update(parameters);
    parameters = std::move(merged);
    break;
  }
  const bool shadows = !parameters.contains("shadow") || parameters["shadow"] != 0;
  const double shadow = shadows ? Parameters(name, parameters).number("shadow", 0, kLeastShadowShare, 1) : 0;
  parameters.erase("shadow");  // Handled here for all policies, so no policy knows it.
  std::string known;
  for (const PolicyRow& row : policy_registry()) {
    if (row.name == name) {
      check_window(context.window, row, shadow);
      std::unique_ptr<KvCachePolicy> policy = row.create(context, parameters);
      if (shadow > 0) policy = make_shadow_policy(context, std::move(policy), shadow);
      return policy;
    }
    known += (known.empty() ? "\"" : ", \"") + std::string(row.name) + "\"";
  }
  for (const PolicyPreset& preset : policy_presets()) known += ", \"" + std::string(preset.name) + "\"";
  throw CacheError("kv_cache: unknown policy \"" + name + "\"; known: " + known);
}

}  // namespace smartkv
