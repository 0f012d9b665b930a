#include "cache/stores/staged_bytes.h"

#include <numeric>

#include "cache/stores/tail_scores.h"

namespace smartkv {

int64_t StagedBytes::freed(int64_t layer, const Moment& then) const {
  const int64_t pages = (then.left - view_.tail_first) / kernels::kPageTokens;
  return pages * context_.pool->page_bytes() - view_.shared_before(layer, then.left);
}

int64_t StagedBytes::tail(const Moment& then) const {
  const bool scored = hidden_scorer(stores_) != nullptr;
  int64_t bytes = scored ? TailScores::bytes_of(context_.shape, whole_pages(then.tokens) - then.left) : 0;
  for (size_t layer = 0; layer < view_.tail.size(); ++layer) {
    const DenseLayer& tail = view_.tail[layer];
    bytes += tail.bytes() + tail.growth(view_.tokens, then.tokens) - freed(static_cast<int64_t>(layer), then);
  }
  return bytes;
}

int64_t StagedBytes::at(int64_t tokens) const {
  const Moment then = view_.boundaries.at(tokens);
  int64_t bytes = tail(then);
  for (const auto& store : stores_) {
    const StoreBytes of_store = store->bytes_at(view_, then);
    bytes += of_store.pages + of_store.state;
  }
  return bytes;
}

// A layer's tokens are dropped from the tail once its stores have taken them. As many layers as there are threads are
// compacted at the same time.
int64_t StagedBytes::committing(int64_t boundary) const {
  const Moment before = view_.boundaries.before(boundary), after = view_.boundaries.at(boundary);
  const auto n_layers = static_cast<int64_t>(view_.tail.size());
  int64_t held = tail(before), left = tail(after);
  int64_t most = 0, prepared = 0;  // Bytes that the boundary adds for a while: at most, and in prepare().
  std::vector<int64_t> take(view_.tail.size(), 0);
  for (const auto& store : stores_) {
    const StoreBytes was = store->bytes_at(view_, before);
    StoreBytes is = store->bytes_at(view_, after);
    const int64_t more = std::max<int64_t>(0, is.pages - was.pages);
    if (is.take.empty()) is.take.assign(view_.tail.size(), (more + n_layers - 1) / n_layers);
    for (size_t layer = 0; layer < take.size(); ++layer) take[layer] += is.take[layer];
    const int64_t state = std::max(was.state, is.state);  // Stores finish one after the other.
    held += was.pages + state;
    left += is.pages + state;
    most += std::min(more + is.working, is.prepared + std::accumulate(is.take.begin(), is.take.end(), int64_t{0}));
    prepared += is.prepared;
  }
  int64_t lasting = 0, passing = 0;
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    const int64_t of_layer = take[static_cast<size_t>(layer)], free = freed(layer, after) - freed(layer, before);
    lasting += std::max<int64_t>(0, of_layer - free);
    passing = std::max(passing, std::min(of_layer, free));
  }
  passing *= std::min(n_layers, context_.workers());
  return std::max(held + std::min(most, prepared + lasting + passing), left);
}

// There are three kinds of boundaries: in the prompt, at its end, and after it. Except at the first boundary, the tail
// has the same length at all boundaries of a kind, so the last one of each kind takes the most bytes.
int64_t StagedBytes::peak(int64_t tokens) const {
  const Boundaries& boundaries = view_.boundaries;
  const int64_t of_prompt = boundaries.last(std::min(tokens, boundaries.prompt_tokens));
  int64_t peak = at(tokens), next = view_.next_boundary;
  for (const int64_t boundary : {view_.next_boundary, boundaries.last(of_prompt - 1), of_prompt,
                                 boundaries.after(of_prompt), boundaries.last(tokens)}) {
    if (boundary < next || boundary > tokens) continue;
    peak = std::max(peak, committing(boundary));
    next = boundary + 1;
  }
  return peak;
}

}  // namespace smartkv
