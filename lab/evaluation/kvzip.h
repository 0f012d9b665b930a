// KVzip (Kim et al. 2025) as an oracle. The score of a token is the most attention that it gets from any query while
// the model repeats the context. All layers and KV heads share one budget. The scores need the full cache and a second
// pass over the whole context, so KVzip is a reference for other policies and does not serve.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lab/evaluation/evaluation.h"

namespace smartkv {

// Returns whether `spec` is "kvzip" or {"policy": "kvzip", ...}.
inline bool is_kvzip(const nlohmann::json& spec) {
  return spec == "kvzip" || (spec.is_object() && spec.value("policy", nlohmann::json()) == "kvzip");
}

// Returns the most attention that each token of `context` gets, f32 [n_layers, n_kv_heads, context]. The model repeats
// the context in chunks of at most kRepeatTokens, and no more than fit in its own context length. Throws
// EvaluationError if there is no room.
constexpr int64_t kRepeatTokens = 1024;
std::vector<float> repeat_scores(const EvaluationModel& model, const Tokenizer& tokenizer,
                                 std::span<const TokenId> context);

// Makes a policy that keeps the tokens of the prompt `context` with the highest scores. `spec` is {"policy": "kvzip",
// "tokens": N, ...} with the parameters of gated_eviction. Throws CacheError naming the key, and EvaluationError like
// repeat_scores().
std::unique_ptr<KvCachePolicy> make_kvzip_policy(const EvaluationModel& model, const Tokenizer& tokenizer,
                                                 const nlohmann::json& spec, std::span<const TokenId> context);
// Throws CacheError for a spec that make_kvzip_policy() would refuse.
void check_kvzip(const CacheShape& shape, const nlohmann::json& spec);

}  // namespace smartkv
