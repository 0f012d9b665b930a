#include "cache/policies/full/full.h"

#include <string>

#include "cache/dense_layer.h"

namespace smartkv {
namespace {

class FullSequence final : public SequenceCache {
 public:
  explicit FullSequence(const PolicyContext& context)
      : shape_(context.shape), layers_(static_cast<size_t>(context.shape.n_layers), DenseLayer(context.pool)) {}

  int64_t tokens() const override { return tokens_; }
  int64_t committed() const override { return committed_; }

  void reserve(int64_t n) override {
    for (DenseLayer& layer : layers_) layer.reserve(tokens_, tokens_ + n);
  }
  void write(int64_t layer, const KvRows& rows) override {
    layers_[static_cast<size_t>(layer)].write(tokens_ + rows.first, rows);
  }
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override {
    layers_[static_cast<size_t>(layer)].append_view(tokens_ + n_new, segments);
  }
  void advance(int64_t n) override { tokens_ += n; }

  void truncate(int64_t n_tokens) override {
    if (n_tokens < committed_ || n_tokens > tokens_) {
      throw CacheError("truncate: expected a token count in [" + std::to_string(committed_) + ", " +
                       std::to_string(tokens_) + "], found " + std::to_string(n_tokens));
    }
    tokens_ = n_tokens;
    for (DenseLayer& layer : layers_) layer.truncate(n_tokens);
  }
  void commit(int64_t n_tokens) override {
    if (n_tokens < committed_ || n_tokens > tokens_) {
      throw CacheError("commit: expected a token count in [" + std::to_string(committed_) + ", " +
                       std::to_string(tokens_) + "], found " + std::to_string(n_tokens));
    }
    committed_ = n_tokens;
  }
  std::unique_ptr<SequenceCache> fork() const override { return std::make_unique<FullSequence>(*this); }

  CacheStats stats() const override {
    CacheStats stats;
    stats.tokens = stats.tokens_kept = tokens_;
    for (const DenseLayer& layer : layers_) stats.bytes += layer.bytes();
    stats.full_bytes = stats.bytes;
    return stats;
  }

 private:
  CacheShape shape_;
  std::vector<DenseLayer> layers_;
  int64_t tokens_ = 0;
  int64_t committed_ = 0;
};

class FullPolicy final : public KvCachePolicy {
 public:
  explicit FullPolicy(PolicyContext context) : context_(std::move(context)) {}
  std::string_view name() const override { return "full"; }
  int64_t max_bytes(int64_t /*prompt_tokens*/, int64_t n_tokens) const override {
    const int64_t pages = (n_tokens + kernels::kPageTokens - 1) / kernels::kPageTokens;
    return pages * kernels::kPageTokens * context_.shape.bytes_per_token();
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t /*prompt_tokens*/) const override {
    return std::make_unique<FullSequence>(context_);
  }

 private:
  PolicyContext context_;
};

}  // namespace

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  for (const auto& [key, value] : parameters.items()) {
    throw CacheError("kv_cache." + key + ": the policy \"full\" takes no parameters");
  }
  return std::make_unique<FullPolicy>(context);
}

}  // namespace smartkv
