#include "lab/evaluation/kvzip.h"

#include <algorithm>

#include "cache/forwarding_cache.h"
#include "cache/layered_cache.h"
#include "cache/parameters.h"
#include "cache/stores/shared_budget_store.h"
#include "cache/stores/slot_store.h"
#include "cache/stores/staged_policy.h"
#include "cache/stores/token_scorer.h"

namespace smartkv {
namespace {

// A full cache in which every query from `first` on is a probe. Records in `most`, f32 [n_layers, n_kv_heads, context],
// the most attention that each of the first `context` tokens gets.
class RecordingCache final : public ForwardingCache {
 public:
  RecordingCache(SequenceCache* full, int64_t n_kv_heads, int64_t context, int64_t first, std::vector<float>* most)
      : ForwardingCache({full}), n_kv_heads_(n_kv_heads), context_(context), first_(first), most_(most) {}

  TokenRange probes(int64_t n) const override { return {std::max(tokens(), first_), tokens() + n}; }
  void observe(int64_t layer, const Probe& probe) override {
    const size_t stride = probe.mass.size() / static_cast<size_t>(n_kv_heads_);
    for (int64_t head = 0; head < n_kv_heads_; ++head) {
      const float* const mass = probe.mass.data() + static_cast<size_t>(head) * stride;
      float* const most = most_->data() + (layer * n_kv_heads_ + head) * context_;
      for (int64_t t = 0; t < context_; ++t) most[t] = std::max(most[t], mass[t]);
    }
  }
  std::unique_ptr<SequenceCache> fork() const override {
    throw CacheError("kvzip: a recording cache cannot be forked");
  }
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return nullptr; }

 private:
  const int64_t n_kv_heads_, context_, first_;
  std::vector<float>* most_;
};

// Returns the recorded scores. Tokens after the prompt score higher than any of them.
class RecordedScorer final : public ContentScorer {
 public:
  RecordedScorer(int64_t n_kv_heads, int64_t context, std::vector<float> scores)
      : n_kv_heads_(n_kv_heads), context_(context), scores_(std::move(scores)) {}

  std::string_view name() const override { return "kvzip"; }
  void score(const PolicyContext&, const ScoredTokens& tokens, float* scores, float* /*importance*/) const override {
    constexpr float kMore = 2.0f;  // greater than any probability
    for (int64_t head = 0; head < n_kv_heads_; ++head) {
      const float* const of_head = scores_.data() + (tokens.layer * n_kv_heads_ + head) * context_;
      for (int64_t i = 0; i < tokens.n; ++i) {
        const int64_t position = tokens.first + i;
        scores[head * tokens.n + i] = position < context_ ? of_head[position] : kMore;
      }
    }
  }

 private:
  const int64_t n_kv_heads_, context_;
  std::vector<float> scores_;
};

EvictionOptions read_options(const CacheShape& shape, const nlohmann::json& spec) {
  nlohmann::json parameters = spec.is_object() ? spec : nlohmann::json::object();
  parameters.erase("policy");
  Parameters read("kvzip", parameters);
  EvictionOptions options = read_eviction_options(&read, shape);
  read.done();
  return options;
}

}  // namespace

std::vector<float> repeat_scores(const EvaluationModel& model, const Tokenizer& tokenizer,
                                 std::span<const TokenId> context) {
  constexpr int64_t kLeast = 32, kInstruction = 48;  // fewest tokens of a chunk; most tokens of the instruction
  // Tokens before a chunk, quoted in the instruction to say where it begins.
  constexpr size_t kLeadIn = 8;
  const auto n = static_cast<int64_t>(context.size());
  const int64_t chunk = std::min(kRepeatTokens, model.model.config().context_length - n - kInstruction);
  if (chunk < kLeast) {
    throw EvaluationError("kvzip: expected room to repeat " + std::to_string(kLeast) + " tokens after a context of " +
                          std::to_string(n) + " tokens, found a context_length of " +
                          std::to_string(model.model.config().context_length));
  }
  const CacheShape& shape = model.shape;
  std::vector<float> most(static_cast<size_t>(shape.n_layers * shape.n_kv_heads * n), 0.0f);
  const auto full = model.make_policy("full");
  const auto cache = full->new_sequence(n);
  feed(model.model, *cache, context, 0, nullptr);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const auto repeated = context.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(chunk, n - begin)));
    std::string instruction = "\n\nRepeat the previous context exactly";
    if (begin > 0)
      instruction += ", from behind \"" +
                     tokenizer.decode(context.subspan(static_cast<size_t>(begin) - kLeadIn, kLeadIn)) + "\" on";
    std::vector<TokenId> tokens = tokenizer.encode(instruction + ":\n\n", {false, false});
    if (static_cast<int64_t>(tokens.size()) > kInstruction) tokens.resize(static_cast<size_t>(kInstruction));
    const auto fork = cache->fork();
    feed(model.model, *fork, tokens, 0, nullptr);
    RecordingCache recording(fork.get(), shape.n_kv_heads, n, n + static_cast<int64_t>(tokens.size()), &most);
    feed(model.model, recording, repeated, 0, nullptr);
  }
  return most;
}

void check_kvzip(const CacheShape& shape, const nlohmann::json& spec) { check_eviction(read_options(shape, spec)); }

std::unique_ptr<KvCachePolicy> make_kvzip_policy(const EvaluationModel& model, const Tokenizer& tokenizer,
                                                 const nlohmann::json& spec, std::span<const TokenId> context) {
  if (model.context == nullptr) throw EvaluationError("kvzip: expected a policy context, found none");
  const EvictionOptions options = read_options(model.shape, spec);
  check_eviction(options);
  auto scorer = std::make_shared<RecordedScorer>(model.shape.n_kv_heads, static_cast<int64_t>(context.size()),
                                                 repeat_scores(model, tokenizer, context));
  return add_windows(*model.context,
                     std::make_unique<StagedPolicy>("kvzip", *model.context, options.boundaries(),
                                                    std::make_unique<SharedBudgetStoreFactory>(
                                                        SharedBudgetOptions{options, 1}, std::move(scorer))));
}

}  // namespace smartkv
