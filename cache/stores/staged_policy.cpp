#include "cache/stores/staged_policy.h"

#include "cache/stores/staged_bytes.h"
#include "cache/stores/staged_sequence.h"

namespace smartkv {

namespace {

std::vector<std::unique_ptr<StoreFactory>> chain_of(std::unique_ptr<StoreFactory> store) {
  std::vector<std::unique_ptr<StoreFactory>> stores;
  stores.push_back(std::move(store));
  return stores;
}

}  // namespace

StagedPolicy::StagedPolicy(std::string_view name, const PolicyContext& context, const Boundaries& boundaries,
                           std::vector<std::unique_ptr<StoreFactory>> stores)
    : name_(name), context_(context), boundaries_(boundaries), stores_(std::move(stores)) {
  PolicyContext apart = context;
  apart.pool = PagePool::create(context.shape, context.pool->backend(), 0);
  empty_tail_.assign(static_cast<size_t>(context.shape.n_layers), DenseLayer(apart.pool));
  empty_stores_ = make_stores(apart);
}

StagedPolicy::StagedPolicy(std::string_view name, const PolicyContext& context, const Boundaries& boundaries,
                           std::unique_ptr<StoreFactory> store)
    : StagedPolicy(name, context, boundaries, chain_of(std::move(store))) {}

int64_t StagedPolicy::max_bytes(int64_t prompt_tokens, int64_t n_tokens) const {
  const Boundaries boundaries = boundaries_of(prompt_tokens);
  const StageView empty{empty_tail_, 0, 0, boundaries.after(0), boundaries};
  return StagedBytes(context_, empty, empty_stores_).peak(n_tokens);
}

std::unique_ptr<SequenceCache> StagedPolicy::new_sequence(int64_t prompt_tokens) const {
  return make_sequence(prompt_tokens);
}

bool StagedPolicy::exchanges() const {
  return std::any_of(stores_.begin(), stores_.end(), [](const auto& store) { return store->exchanges(); });
}

std::unique_ptr<SequenceCache> StagedPolicy::load(StateReader* in) const {
  std::unique_ptr<StagedSequence> sequence = make_sequence(0);
  sequence->load(in);
  return sequence;
}

std::vector<std::unique_ptr<TokenStore>> StagedPolicy::make_stores(const PolicyContext& context) const {
  std::vector<std::unique_ptr<TokenStore>> stores;
  for (const auto& store : stores_) stores.push_back(store->create(context));
  return stores;
}

std::unique_ptr<StagedSequence> StagedPolicy::make_sequence(int64_t prompt_tokens) const {
  return std::make_unique<StagedSequence>(context_, boundaries_of(prompt_tokens), make_stores(context_));
}

}  // namespace smartkv
