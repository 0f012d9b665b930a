#include "cache/stores/staged_policy.h"

#include <algorithm>

#include "cache/stores/staged_sequence.h"

namespace smartkv {

int64_t StagedPolicy::max_bytes(int64_t prompt_tokens, int64_t n_tokens) const {
  const CacheShape& shape = context_.shape;
  const Boundaries boundaries = boundaries_of(prompt_tokens);
  const int64_t n_left = stores_.empty() ? 0 : boundaries.leaving(n_tokens);
  StoreFactory::Bytes held{0, 0, 0, 0};
  for (const auto& store : stores_) {
    const StoreFactory::Bytes bytes = store->max_bytes(context_, prompt_tokens, n_tokens, n_left);
    held.pages += bytes.pages;
    held.state += bytes.state;
    const int64_t of_layer = bytes.layer_pages >= 0 ? bytes.layer_pages : (bytes.pages + shape.n_layers - 1) / shape.n_layers;
    held.layer_pages += of_layer;
    held.layer_rise += bytes.layer_rise >= 0 ? bytes.layer_rise : of_layer;
  }
  const int64_t tail = dense_bytes(shape, boundaries.most_in_tail(n_tokens));
  if (boundaries.stride != Boundaries::kNever) return tail + held.pages + held.state;
  // The whole prompt is dense until its end. Then a layer's tokens are dropped from the tail once its stores have taken
  // them. As many layers as there are threads are compacted at the same time.
  const int64_t pruned = dense_bytes(shape, Boundaries{boundaries.window}.most_in_tail(n_tokens));
  const bool prunes_prompt = boundaries.after(0) <= prompt_tokens;
  const int64_t at_it = std::min(shape.n_layers, context_.workers()) * (prunes_prompt ? held.layer_pages : held.layer_rise);
  return std::max(tail, pruned + held.pages) + at_it + held.state;
}

std::unique_ptr<SequenceCache> StagedPolicy::new_sequence(int64_t prompt_tokens) const { return make_sequence(prompt_tokens); }

bool StagedPolicy::exchanges() const {
  return std::any_of(stores_.begin(), stores_.end(), [](const auto& store) { return store->exchanges(); });
}

std::unique_ptr<SequenceCache> StagedPolicy::load(StateReader* in) const {
  std::unique_ptr<StagedSequence> sequence = make_sequence(0);
  sequence->load(in);
  return sequence;
}

std::unique_ptr<StagedSequence> StagedPolicy::make_sequence(int64_t prompt_tokens) const {
  std::vector<std::unique_ptr<TokenStore>> stores;
  for (const auto& store : stores_) stores.push_back(store->create(context_));
  return std::make_unique<StagedSequence>(context_, boundaries_of(prompt_tokens), std::move(stores));
}

}  // namespace smartkv
