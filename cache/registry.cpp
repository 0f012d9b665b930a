#include <algorithm>

#include "cache/layered_cache.h"
#include "cache/parameters.h"
#include "cache/policies/block_summary/block_summary.h"
#include "cache/policies/calibrated/calibrated.h"
#include "cache/policies/calibrated/sensitivity.h"
#include "cache/policies/channel_packed/channel_packed.h"
#include "cache/policies/full/full.h"
#include "cache/policies/gated_eviction/gated_eviction.h"
#include "cache/policies/mixed_precision/mixed_precision.h"
#include "cache/policies/random/random.h"
#include "cache/policies/snapkv/snapkv.h"
#include "cache/policies/sparse/sparse.h"
#include "cache/policies/streaming/streaming.h"
#include "cache/policies/tova/tova.h"
#include "cache/policies/uniform/uniform.h"
#include "cache/policy.h"
#include "cache/presets.h"
#include "cache/shadow/shadow_policy.h"

namespace smartkv {

const std::vector<PolicyRow>& policy_registry() {
  constexpr bool kByContents = true, kCutsPages = true;
  constexpr std::string_view kSlots = R"({"tokens": 448})", kFewSlots = R"({"tokens": 256})";
  static const std::vector<PolicyRow> rows = {
      {.name = "full", .summary = "every token, exact", .create = make_full_policy},
      {.name = "gated_eviction",
       .summary = "the tokens that matter longest, as estimated by a learned gate or a calibration",
       .create = make_gated_eviction_policy,
       .calibrated = true,
       .trials = {{"", kSlots},
                  {"k4v4", R"({"tokens": 512, "kept": "k4v4"})", kByContents},
                  {"equal_k4v4", R"({"tokens": 448, "sizes": "equal", "kept": "k4v4"})"},
                  {"streaming_k8v4", R"({"tokens": 512, "kept": "k8v4", "prefill": "streaming"})", kByContents},
                  {"equal", R"({"tokens": 448, "sizes": "equal"})"},
                  {"calibrated", R"({"tokens": 448, "scorer": "calibrated"})"},
                  {"hidden", R"({"tokens": 448, "gate": "hidden"})"},
                  {"hidden_equal", R"({"tokens": 448, "sizes": "equal", "gate": "hidden"})"},
                  {"heads", R"({"tokens": 448, "gate": "heads"})"},
                  {"summaries",
                   R"({"tokens": 448, "lost": {"tokens": 128, "block": 48, "salient": 2, "outliers": 16}})",
                   kByContents},
                  {"summary_codes", R"({"tokens": 512, "lost": {"tokens": 192, "block": 32, "summary_bits": "4"}})",
                   kByContents}},
       .brief_trial = kFewSlots},
      {.name = "block_summary",
       .summary = "a window, and summaries of the tokens before it",
       .create = make_block_summary_policy,
       .calibrated = true,
       .trials = {{"", R"({"tokens": 448, "window": 64, "salient": 4, "salient_most": 12})", kByContents},
                  {"levels",
                   R"({"window": 64, "block": 80, "level": 24, "salient": 8, "outliers": 20, "salience": "novelty",
                                 "eps": 0.01})",
                   kByContents},
                  {"codes", R"({"window": 64, "block": 32, "level": 96, "salient": 4, "salient_most": 9, "outliers": 24,
                                "salience": "novelty", "eps": 0.01, "summary_bits": "8"})",
                   kByContents},
                  {"one_layer", R"({"tokens": 320, "window": 64, "layers": "1-1"})", kByContents}},
       .brief_trial = R"({"tokens": 320, "window": 64, "salient": 4})"},
      {.name = "mixed_precision",
       .summary = "every token, in 8 to 2 bits by importance, within a budget",
       .create = make_mixed_precision_policy,
       .trials = {{"", R"({"bits": 4.5, "horizon": 1024})", kByContents},
                  {"dropping", R"({"bits": 2.6, "horizon": 1024, "least_bits": 0})", kByContents},
                  {"forecast", R"({"bits": 6, "horizon": 1024, "forecast": true, "forecast_history": 64,
                                   "forecast_hidden": 8})",
                   kByContents}},
       .brief_trial = R"({"bits": 6, "horizon": 1024})"},
      {.name = "calibrated",
       .summary = "every token, in 0 to 8 bits by how much a channel matters to the model",
       .create = make_calibrated_policy,
       .calibrated = true,
       .trials = {{"", "{}"},
                  {"few_bits", R"({"bits": 2.5, "tiers": 1})"},
                  {"two_tiers", R"({"bits": 2.5, "tiers": 2})"}}},
      {.name = "channel_packed",
       .summary = "every token, without unimportant channels; a guard restores them if accuracy drops",
       .create = make_channel_packed_policy,
       .trials =
           {{"",
             R"({"storage": "quantized", "key_channels": 48, "update_every": 64, "stable_updates": 1, "retention": 0.5,
                           "check_every": 256, "most_kl": 0.02})",
             kByContents},
            {"cut", R"({"key_channels": 48, "value_channels": 48, "update_every": 64, "stable_updates": 1,
                              "retention": 0.5, "least_overlap": 0, "most_margin_drift": 100, "most_kl": 100})",
             kByContents, kCutsPages}},
       .brief_trial = R"({"storage": "quantized", "key_channels": 48, "update_every": 64, "check_every": 128})"},
      {.name = "streaming",
       .summary = "sinks and a window",
       .create = make_streaming_policy,
       .trials = {{"", kSlots}},
       .brief_trial = kFewSlots},
      {.name = "random",
       .summary = "sinks, a window, and tokens drawn at random",
       .create = make_random_policy,
       .trials = {{"", kSlots}},
       .brief_trial = kFewSlots},
      {.name = "snapkv",
       .summary = "sinks, a window, and the tokens that the last queries attend to most",
       .create = make_snapkv_policy,
       .trials = {{"", kSlots}, {"shared_k4v4", R"({"tokens": 512, "sizes": "shared", "kept": "k4v4"})", kByContents}},
       .brief_trial = kFewSlots},
      {.name = "tova",
       .summary =
           "sinks, a window, and the tokens that the last query attends to most, the same in all heads of a layer",
       .create = make_tova_policy,
       .trials = {{"", kSlots}},
       .brief_trial = kFewSlots},
      {.name = "sparse",
       .summary = "every token; each query reads the tokens of the highest estimated attention",
       .create = make_sparse_policy,
       .trials = {{"", "{}"}, {"codes", R"({"kept": "k4v4"})"}}},
      {.name = "k8v8", .summary = "K and V in 8 bits", .create = make_uniform_policy<8, 8>},
      {.name = "k8v4",
       .summary = "K in 8 bits, V in 4 bits",
       .create = make_uniform_policy<8, 4>,
       .trials = {{"", "{}"}, {"short_window", R"({"window": 20})"}}},
      {.name = "k4v4", .summary = "K and V in 4 bits", .create = make_uniform_policy<4, 4>},
      {.name = "k3v3", .summary = "K and V in 3 bits", .create = make_uniform_policy<3, 3>},
      {.name = "k2v2", .summary = "K and V in 2 bits", .create = make_uniform_policy<2, 2>},
  };
  return rows;
}

const std::vector<CacheMetric>& cache_metrics() {
  static const std::vector<CacheMetric> metrics = [] {
    std::vector<CacheMetric> all;
    for (const auto& declared :
         {block_summary_metrics(), channel_packed_metrics(), mixed_precision_metrics(), shadow_metrics()}) {
      all.insert(all.end(), declared.begin(), declared.end());
    }
    return all;
  }();
  return metrics;
}

namespace {

std::unique_ptr<KvCachePolicy> make_full_attention_policy(const PolicyContext& context, const nlohmann::json& spec);

// Returns what calibration measured of the model; null if nothing.
std::shared_ptr<const Sensitivity> calibration_of(const PolicyContext& context) {
  return context.load_sensitivity == nullptr ? nullptr : context.load_sensitivity();
}

// Returns the index in a frontier of a policy with these parameters; its size if it is not there.
size_t find_point(const Frontier& frontier, const nlohmann::json& spec) {
  const auto found = std::ranges::find(frontier, spec, &FrontierPoint::spec);
  return static_cast<size_t>(found - frontier.begin());
}

// Whether the policy's caches can be filled with keys and values alone: they observe no queries of a long text, and no
// hidden states.
bool needs_rows_only(const KvCachePolicy& policy) {
  const auto cache = policy.new_sequence(0);
  return !cache->wants_hidden() && cache->probes(std::min<int64_t>(cache->next_boundary(), 4096)).empty();
}

// Creates a policy. spec: its name and parameters, with those that every policy accepts. max_kl: limit of a promise
// that chose it; absent if `spec` may have one.
std::unique_ptr<KvCachePolicy> make_row_policy(const PolicyContext& context, const PolicyRow& row, nlohmann::json spec,
                                               std::optional<double> max_kl) {
  Parameters read(std::string(row.name), spec);
  constexpr std::string_view kHelp = "share of positions at which attention is compared with that over the full cache";
  const bool shadows = !spec.contains("shadow") || spec["shadow"] != 0;
  const double shadow = shadows ? read.number("shadow", 0, kLeastShadowShare, 1, kHelp) : 0;
  if (shadow == 0) read.refuse({"on_drift", "max_kl"}, "\"shadow\"");
  if (read.has("max_kl")) {
    max_kl = read.number("max_kl", 0, 0, 100,
                         "with `shadow`, the divergence from which on a promise counts as broken; "
                         "absent: that of the model's frontier");
  }
  const bool steps_up =
      read.choice("on_drift", "report", {"report", "step_up"},
                  "with `shadow`, if a promise is broken: count it, or also go on with the next safer "
                  "policy of the model's frontier") == "step_up";
  nlohmann::json own = spec;
  for (const char* key : {"shadow", "on_drift", "max_kl"}) own.erase(key);
  nlohmann::json parameters = own;
  parameters.erase("policy");
  std::unique_ptr<KvCachePolicy> policy = row.create(context, parameters);
  std::optional<KeptPromise> promise;
  std::vector<nlohmann::json> safer;
  if (max_kl || shadow > 0 || row.name == kCalibratedPolicy) {  // else the model need not be calibrated
    const auto calibration = calibration_of(context);
    const Frontier frontier = calibration == nullptr ? Frontier() : calibration->frontier;
    const size_t at = find_point(frontier, own);
    if (at < frontier.size()) promise = KeptPromise{frontier[at], max_kl.value_or(frontier[at].kl)};
    for (size_t i = at + 1; i < frontier.size(); ++i) safer.push_back(frontier[i].spec);
  }
  if (!promise && (steps_up || spec.contains("max_kl"))) {
    throw ParameterError(steps_up ? "kv_cache.on_drift" : "kv_cache.max_kl",
                         "needs a policy on the frontier of a model that was calibrated "
                         "(smartkv calibrate; /v1/models lists it), found " +
                             own.dump());
  }
  if (shadow > 0) {
    DriftWatch watch;
    if (promise) watch.most_drift = promise->most_drift();
    if (steps_up) {
      for (const nlohmann::json& next : safer) {
        std::shared_ptr<const KvCachePolicy> made = make_full_attention_policy(context, next);
        if (needs_rows_only(*made)) watch.safer.push_back(std::move(made));
      }
    }
    policy = make_shadow_policy(context, std::move(policy), shadow, std::move(watch));
    own = std::move(spec);
    if (max_kl) own["max_kl"] = *max_kl;
  }
  policy->set_spec(std::move(own), std::move(promise));
  return policy;
}

// Creates the policy of a name with parameters, or a preset's with some of its parameters replaced.
std::unique_ptr<KvCachePolicy> make_named_policy(const PolicyContext& context, const std::string& name,
                                                 const nlohmann::json& parameters, std::optional<double> max_kl) {
  const auto with_parameters = [&](nlohmann::json own) {
    own.update(parameters);
    return own;
  };
  for (const PolicyPreset& preset : policy_presets()) {
    if (preset.name != name) continue;
    try {
      return make_full_attention_policy(context, with_parameters(preset.spec));
    } catch (const ModelLacks&) {
      if (preset.stand_in.is_null()) throw;
      auto policy = make_full_attention_policy(context, with_parameters(preset.stand_in));
      const std::string also = policy->stand_in().empty() ? "" : "; " + policy->stand_in();
      policy->set_stand_in(std::string(policy->name()) + ", because the model was not calibrated" + also);
      return policy;
    }
  }
  std::string known;
  for (const PolicyRow& row : policy_registry()) {
    if (row.name == name) return make_row_policy(context, row, with_parameters({{"policy", name}}), max_kl);
    known += (known.empty() ? "\"" : ", \"") + std::string(row.name) + "\"";
  }
  for (const PolicyPreset& preset : policy_presets()) known += ", \"" + std::string(preset.name) + "\"";
  throw CacheError("kv_cache: unknown policy \"" + name + "\"; known: " + known);
}

// Creates the policy that a promise chooses. spec: the promise, and parameters that every policy accepts.
std::unique_ptr<KvCachePolicy> make_promised_policy(const PolicyContext& context, nlohmann::json spec) {
  const Promise promise = Promise::take(&spec);
  for (const auto& [key, value] : spec.items()) {
    if (key == "shadow" || key == "on_drift") continue;
    throw ParameterError("kv_cache." + key,
                         "expected max_kl, max_perplexity_percent, bytes_per_token, shadow or "
                         "on_drift beside a promise, found " +
                             value.dump());
  }
  const auto calibration = calibration_of(context);
  if (calibration == nullptr || calibration->frontier.empty()) {
    throw ModelLacks(
        "kv_cache: a promise needs a model whose policies were measured (smartkv calibrate, or serve "
        "--calibrate), found one that was not");
  }
  nlohmann::json chosen = calibration->frontier[choose_point(calibration->frontier, promise)].spec;
  const std::string name = chosen.at("policy");
  chosen.erase("policy");
  chosen.update(spec);
  return make_named_policy(context, name, chosen, promise.max_kl);
}

// make_policy() without the layers that have a window.
std::unique_ptr<KvCachePolicy> make_full_attention_policy(const PolicyContext& context, const nlohmann::json& spec) {
  if (Promise::is_in(spec)) return make_promised_policy(context, spec);
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
  return make_named_policy(context, name, parameters, {});
}

}  // namespace

std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) {
  PolicyContext checked = context;
  checked.shape.n_layers = std::max<int64_t>(1, context.shape.n_layers);  // for a policy that has no layer
  return add_windows(context, make_full_attention_policy(checked, spec));
}

}  // namespace smartkv
