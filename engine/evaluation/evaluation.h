// What every evaluation of cache policies shares: the model under test, its text, and how tokens enter a cache.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <vector>

#include "cache/policy.h"
#include "engine/model/model.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// A measurement that cannot be made, or a result that is not a number.
class EvaluationError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct EvaluationModel {
  Model& model;
  ThreadPool& threads;
  CacheShape shape;
  std::function<std::unique_ptr<KvCachePolicy>(const nlohmann::json& spec)> make_policy;
  const PolicyContext* context = nullptr;  // of these policies, for oracles, which are not of the registry
};

using Progress = std::function<void(double done)>;  // 0..1

// The tokens of a UTF-8 file, without special ones. Throws EvaluationError.
std::vector<TokenId> read_tokens(const std::filesystem::path& text, const Tokenizer& tokenizer);

// Where `windows` windows of `context` tokens start, spread over the text; each has a next token. Throws
// EvaluationError.
std::vector<int64_t> window_starts(const EvaluationModel& model, std::span<const TokenId> tokens, int64_t context,
                                   int64_t windows);

void check_context(const EvaluationModel& model, int64_t context);  // EvaluationError beyond the model's own

// Appends `tokens` in passes of at most kPassTokens that end where the cache wants, committing after each. The logits
// of the last n_logits tokens go to `logits`, f32 [n_logits, vocab_size].
constexpr int64_t kPassTokens = 512;
void feed(Model& model, SequenceCache& cache, std::span<const TokenId> tokens, int64_t n_logits, float* logits);

}  // namespace smartkv
