#include "cache/policies/gated_eviction/gated_eviction.h"

#include "cache/policies/block_summary/lost_summaries.h"
#include "cache/policies/gated_eviction/scorers.h"
#include "cache/stores/shared_budget_store.h"
#include "cache/stores/slot_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

BestScorer make_scorer(const PolicyContext& context, const std::string& name, const std::string& gate, bool shared) {
  if (name == "attention") return {make_decayed_attention_scorer(), ""};
  if (name == "calibrated") return {make_calibrated_scorer(context), ""};
  if (name == "key_norm") return {make_key_norm_scorer(), ""};
  if (name == "learned") return {make_gate_scorer(context, gate, !shared), ""};
  return make_best_scorer(context, gate, !shared);
}

}  // namespace

std::unique_ptr<KvCachePolicy> make_gated_eviction_policy(const PolicyContext& context,
                                                          const nlohmann::json& parameters) {
  Parameters read("gated_eviction", parameters);
  EvictionOptions options = read_eviction_options(&read, context.shape);
  std::unique_ptr<StoreFactory> lost = read_lost_store(&read, &options);
  const std::string scorer =
      read.choice("scorer", "best", {"best", "learned", "calibrated", "attention", "key_norm"},
                  "by a gate, by the model's calibration, by what the last queries attend to, or small keys first; "
                  "best: the first of them that the model has");
  if (scorer != "best" && scorer != "learned") read.refuse({"gate"}, "\"scorer\": \"learned\"");
  const std::string gate = read.text("gate", "", "name of gates that the server has loaded; absent: the model's own");
  const bool pooled = scorer != "attention" && scorer != "key_norm" && lost == nullptr;
  const bool shared = read.choice("sizes", pooled ? "shared" : "equal", {"equal", "shared"},
                                  "as many tokens in each layer and KV head, or one budget for all") == "shared";
  const double margin = read.number("importance_margin", SharedBudgetOptions().margin, 0, 1,
                                    "with \"shared\", how much less ranks of importance count");
  if (read.has("importance_margin") && !shared) {
    throw CacheError("kv_cache.importance_margin: expected \"sizes\": \"shared\", found \"equal\"");
  }
  read.done();
  if (shared && lost != nullptr) throw CacheError("kv_cache.sizes: \"shared\" needs \"lost\": \"nothing\"");
  BestScorer chosen = make_scorer(context, scorer, gate, shared);
  std::vector<std::unique_ptr<StoreFactory>> stores;
  stores.push_back(make_slot_store(shared, {options, margin}, std::move(chosen.scorer)));
  if (lost != nullptr) stores.push_back(std::move(lost));
  auto policy = std::make_unique<StagedPolicy>("gated_eviction", context, options.boundaries(), std::move(stores));
  policy->set_stand_in(std::move(chosen.stand_in));
  return policy;
}

}  // namespace smartkv
