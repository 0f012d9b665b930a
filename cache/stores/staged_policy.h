// A policy that is a configuration: when tokens are evicted from the tail, and the chain of stores that takes them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "cache/stores/token_store.h"

namespace smartkv {

class StagedSequence;

class StagedPolicy final : public KvCachePolicy {
 public:
  // `boundaries` holds the window and the stride; the prompt is each sequence's own.
  StagedPolicy(std::string_view name, const PolicyContext& context, const Boundaries& boundaries,
               std::vector<std::unique_ptr<StoreFactory>> stores);
  // A policy with one store.
  StagedPolicy(std::string_view name, const PolicyContext& context, const Boundaries& boundaries,
               std::unique_ptr<StoreFactory> store);

  std::string_view name() const override { return name_; }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override;
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override;
  std::string across_heads() const override { return {}; }
  bool exchanges() const override;
  std::unique_ptr<SequenceCache> load(StateReader* in) const override;

 private:
  std::unique_ptr<StagedSequence> make_sequence(int64_t prompt_tokens) const;
  std::vector<std::unique_ptr<TokenStore>> make_stores(const PolicyContext& context) const;
  Boundaries boundaries_of(int64_t prompt_tokens) const {
    return {boundaries_.window, boundaries_.stride, prompt_tokens};
  }

  std::string name_;
  PolicyContext context_;
  Boundaries boundaries_;
  std::vector<std::unique_ptr<StoreFactory>> stores_;
  // The tail and the stores of an empty sequence, in a pool of their own. max_bytes() asks them.
  std::vector<DenseLayer> empty_tail_;
  std::vector<std::unique_ptr<TokenStore>> empty_stores_;
};

}  // namespace smartkv
