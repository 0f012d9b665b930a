// The parts that all evaluations of cache policies share: the model under test, its text, and feeding tokens to a
// cache.
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

// A measurement cannot be made, or a result is not a number.
class EvaluationError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The model under test. Everything that it refers to belongs to the caller.
struct EvaluationModel {
  Model& model;
  ThreadPool& threads;
  CacheShape shape;
  std::function<std::unique_ptr<KvCachePolicy>(const nlohmann::json& spec)> make_policy;
  // Context of these policies, for oracles (kvzip.h), which are not in the registry. May be null.
  const PolicyContext* context = nullptr;
};

using Progress = std::function<void(double done)>;  // 0..1

// Returns the tokens of a UTF-8 file, without special tokens. Throws EvaluationError.
std::vector<TokenId> read_tokens(const std::filesystem::path& text, const Tokenizer& tokenizer);

// Returns the starts of `windows` windows of `context` tokens, spread over the text. A token follows each window.
// Throws EvaluationError if the text is too short or the context too long for the model.
std::vector<int64_t> window_starts(const EvaluationModel& model, std::span<const TokenId> tokens, int64_t context,
                                   int64_t windows);

// Throws EvaluationError if `context` exceeds the model's context length.
void check_context(const EvaluationModel& model, int64_t context);

// Appends `tokens` to the cache in passes of at most kPassTokens, and commits after each. Passes end at the cache's
// compaction boundaries. Writes the logits of the last n_logits tokens to `logits`, f32 [n_logits, vocab_size].
constexpr int64_t kPassTokens = 512;
void feed(Model& model, SequenceCache& cache, std::span<const TokenId> tokens, int64_t n_logits, float* logits);

}  // namespace smartkv
