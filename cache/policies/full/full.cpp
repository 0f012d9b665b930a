#include "cache/policies/full/full.h"

#include "cache/parameters.h"
#include "cache/tailed_sequence.h"

namespace smartkv {
namespace {

class FullSequence final : public TailedSequence {
 public:
  explicit FullSequence(const PolicyContext& context) : TailedSequence(context, {}) {}
  std::unique_ptr<SequenceCache> fork() const override { return std::make_unique<FullSequence>(*this); }
};

class FullPolicy final : public KvCachePolicy {
 public:
  explicit FullPolicy(PolicyContext context) : context_(std::move(context)) {}
  std::string_view name() const override { return "full"; }
  int64_t max_bytes(int64_t /*prompt_tokens*/, int64_t n_tokens) const override {
    return dense_bytes(context_.shape, n_tokens);
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t /*prompt_tokens*/) const override {
    return std::make_unique<FullSequence>(context_);
  }

 private:
  PolicyContext context_;
};

}  // namespace

std::unique_ptr<KvCachePolicy> make_full_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters("full", parameters).done();
  return std::make_unique<FullPolicy>(context);
}

}  // namespace smartkv
