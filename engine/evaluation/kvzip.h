// KVzip (Kim et al. 2025) as an oracle: a token is worth the most attention that it gets from any query while the model repeats
// the context, over all layers and KV heads alike. That takes the full cache and a second pass over the whole context, so it is
// what others are measured by, and no policy that serves.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/evaluation/evaluation.h"
#include "engine/evaluation/policy_list.h"

namespace smartkv {

inline bool is_kvzip(const nlohmann::json& spec) {
  return spec == "kvzip" || (spec.is_object() && spec.value("policy", nlohmann::json()) == "kvzip");
}

// The most attention of each token of `context`, f32 [n_layers, n_kv_heads, context]. It is repeated in chunks, as many tokens
// at once as the model's context has room for, kRepeatTokens at most. Throws EvaluationError where there is none.
constexpr int64_t kRepeatTokens = 1024;
std::vector<float> repeat_scores(const EvaluationModel& model, const Tokenizer& tokenizer, std::span<const TokenId> context);

// Keeps of a prompt, `context`, what scores highest. `spec`: {"policy": "kvzip", "tokens": N, and what else gated_eviction has}.
// Throws CacheError naming the key, EvaluationError as above.
std::unique_ptr<KvCachePolicy> make_kvzip_policy(const EvaluationModel& model, const Tokenizer& tokenizer, const nlohmann::json& spec,
                                                 std::span<const TokenId> context);
// Throws CacheError for a spec that the above would refuse.
void check_kvzip(const CacheShape& shape, const nlohmann::json& spec);

}  // namespace smartkv
