#include "cache/eviction/eviction_sequence.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "cache/eviction/token_scorer.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr int64_t kSlotBytes = sizeof(int32_t) + sizeof(float) + sizeof(uint32_t);  // position, score, place in the heap
constexpr int64_t kAttentionBytes = 2 * sizeof(float);  // of a token that attention scores: its mass, its score in the tail

}  // namespace

int64_t eviction_slots(const EvictionOptions& options) {
  const int64_t room = options.tokens - whole_pages(options.window) - kPageTokens;
  return room / kPageTokens * kPageTokens;
}

void check_eviction(const EvictionOptions& options) {
  if (eviction_slots(options) >= std::max<int64_t>(options.sinks, kPageTokens)) return;
  const int64_t least = whole_pages(options.window) + kPageTokens + whole_pages(std::max<int64_t>(options.sinks, 1));
  throw CacheError("kv_cache.tokens: expected at least " + std::to_string(least) + " (window " +
                   std::to_string(options.window) + " and sinks " + std::to_string(options.sinks) +
                   " in whole pages, and one page that is being filled), found " + std::to_string(options.tokens));
}

int64_t eviction_max_bytes(const CacheShape& shape, const EvictionOptions& options, int64_t prompt_tokens,
                           int64_t n_tokens) {
  const int64_t slots = eviction_slots(options);
  const int64_t pruned = std::min(whole_pages(n_tokens) + kPageTokens, slots + whole_pages(options.window) + 2 * kPageTokens);
  const int64_t most = options.exact_prefill ? std::max(pruned, whole_pages(std::min(prompt_tokens, n_tokens))) : pruned;
  const int64_t heads = shape.n_layers * shape.n_kv_heads;
  // At a boundary a layer's slots are filled before its tail is dropped.
  const int64_t moved = dense_bytes(shape, std::min(slots, most)) / shape.n_layers;
  return dense_bytes(shape, most) + moved + heads * (slots * kSlotBytes + most * kAttentionBytes);
}

EvictionSequence::EvictionSequence(const PolicyContext& context, const EvictionOptions& options,
                                   std::shared_ptr<const TokenScorer> scorer, int64_t prompt_tokens)
    : TailedSequence(context, {whole_pages(options.window), options.exact_prefill ? Boundaries::kNever : kPageTokens,
                               prompt_tokens}),
      options_(options),
      scorer_(std::move(scorer)),
      slots_(eviction_slots(options)),
      layers_(static_cast<size_t>(context.shape.n_layers), Layer(context)) {}

int64_t EvictionSequence::n_probes() const { return scorer_->n_probes(); }

void EvictionSequence::view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const {
  layers_[static_cast<size_t>(layer)].kept.append_view(kept_, segments);
  TailedSequence::view(layer, n_new, segments);
}

TokenRange EvictionSequence::probes(int64_t n) const {
  return {std::max(tokens(), next_boundary() - scorer_->n_probes()), std::min(tokens() + n, next_boundary())};
}

void EvictionSequence::observe(int64_t layer, const Probe& probe) {
  const int64_t seen = kept_ + probe.position + 1 - tail_first();
  std::vector<Head>& heads = layers_[static_cast<size_t>(layer)].heads;
  if (static_cast<int64_t>(probe.mass.size()) != seen * static_cast<int64_t>(heads.size())) {
    throw CacheError("observe: expected the mass of " + std::to_string(heads.size()) + " KV heads over " +
                     std::to_string(seen) + " tokens, found " + std::to_string(probe.mass.size()) + " values");
  }
  const float* from = probe.mass.data();
  for (Head& head : heads) {
    head.mass.resize(static_cast<size_t>(seen));
    for (float& sum : head.mass) sum += *from++;
  }
  state_.set(state_bytes());
}

bool EvictionSequence::scores_contents() const { return scorer_->n_probes() == 0; }

// A prompt's tokens are scored as they come, so that its end stalls nobody.
void EvictionSequence::commit(int64_t n_tokens) {
  TailedSequence::commit(n_tokens);
  if (!scores_contents() || n_tokens > boundaries().prompt_tokens) return;
  score_contents(std::min(n_tokens, boundaries().leaving(next_boundary())));
  state_.set(state_bytes());
}

void EvictionSequence::score_contents(int64_t end) {
  constexpr int64_t kRun = 512;  // tokens whose keys are copied at once
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  std::vector<float> angles, scores;
  for (; scored_ < end; scored_ = std::min(end, scored_ + kRun)) {
    const int64_t n = std::min(end - scored_, kRun);
    if (scorer_->needs_angles()) {
      angles.resize(static_cast<size_t>(n * dim));
      for (int64_t i = 0; i < n; ++i) {
        context().rope(scored_ + i, angles.data() + i * dim, angles.data() + i * dim + dim / 2);
      }
    }
    scores.resize(static_cast<size_t>(heads * n));
    for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
      scorer_->score(context(), {layer, tail(layer), scored_, n, angles.data()}, scores.data());
      for (int64_t h = 0; h < heads; ++h) {
        std::vector<float>& known = layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(h)].tail_scores;
        known.insert(known.end(), scores.begin() + h * n, scores.begin() + (h + 1) * n);
      }
    }
  }
}

// Layer by layer, so that a layer's lost tokens make room for the next one's slots.
void EvictionSequence::compact() {
  const int64_t first = tail_first(), end = boundaries().leaving(tokens());
  const int64_t filled = std::min(slots_ - kept_, end - first);
  if (scores_contents()) score_contents(end);
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    absorb(layer, first, end, filled);
    tail(layer).drop_before(end);
  }
  kept_ += filled;
  state_.set(state_bytes());
}

int64_t EvictionSequence::compaction_growth(int64_t end) const {
  int64_t kept = kept_, peak = 0;
  if (next_boundary() <= end) {
    const int64_t gone = boundaries().leaving(next_boundary());
    kept += std::min(slots_ - kept_, gone - tail_first());
    int64_t bytes = 0;
    for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
      bytes += layers_[static_cast<size_t>(layer)].kept.growth(0, kept);
      peak = std::max(peak, bytes);
      bytes -= tail(layer).own_bytes_before(std::min(gone, tokens() / kPageTokens * kPageTokens));
    }
    peak = std::max(peak, bytes);
    if (boundaries().after(next_boundary()) <= end) {  // of later ones, without what they give back
      const int64_t most = std::min(slots_, whole_pages(end));
      peak += dense_bytes(shape(), most - kept);
      kept = most;
    }
  }
  const int64_t heads = shape().n_layers * shape().n_kv_heads;
  if (scores_contents()) {
    const int64_t prompt = boundaries().prompt_tokens;
    const int64_t scores = tokens() < prompt ? std::max<int64_t>(0, std::min(end, prompt) - scored_) : 0;
    return peak + heads * ((kept - kept_) * kSlotBytes + scores * static_cast<int64_t>(sizeof(float)));
  }
  if (kept == kept_ && probes(end - tokens()).empty()) return peak;
  const int64_t state = heads * (kept * kSlotBytes + (kept + end - tail_first()) * kAttentionBytes);
  return peak + std::max<int64_t>(0, state - state_.bytes());
}

int64_t EvictionSequence::state_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      bytes += static_cast<int64_t>(head.positions.size()) * kSlotBytes +
               static_cast<int64_t>((head.tail_scores.size() + head.mass.size()) * sizeof(float));
    }
  }
  return bytes;
}

void EvictionSequence::score_attention(Head* head, int64_t first) const {
  const auto tail = static_cast<size_t>(tokens() - first), kept = static_cast<size_t>(kept_);
  head->tail_scores.resize(tail);
  head->mass.resize(kept + tail);
  // In order of position: evictions leave the places in any order.
  std::vector<size_t> order(kept + tail);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.begin() + kept_, [&](size_t a, size_t b) { return head->positions[a] < head->positions[b]; });
  const auto score = [&](size_t i) -> float& { return i < kept ? head->scores[i] : head->tail_scores[i - kept]; };
  std::vector<float> previous, mass;
  for (const size_t i : order) {
    previous.push_back(score(i));
    mass.push_back(head->mass[i]);
  }
  scorer_->score_mass(previous, mass);
  for (size_t i = 0; i < order.size(); ++i) score(order[i]) = mass[i];
  std::vector<float>().swap(head->mass);
}

std::vector<uint32_t> EvictionSequence::place(Head* head, int64_t first, int64_t end, int64_t filled) const {
  // The heap's order: less valuable first, of equals the older.
  const auto later = [head](uint32_t a, uint32_t b) {
    return head->scores[a] != head->scores[b] ? head->scores[a] > head->scores[b] : head->positions[a] > head->positions[b];
  };
  if (!scores_contents()) {
    score_attention(head, first);
    std::make_heap(head->heap.begin(), head->heap.end(), later);
  }
  const auto room = static_cast<size_t>(kept_ + filled);
  head->positions.reserve(room);
  head->scores.reserve(room);
  head->heap.reserve(room);
  std::vector<uint32_t> changed;
  for (int64_t i = 0; i < end - first; ++i) {
    const auto position = static_cast<int32_t>(first + i);
    const float score = head->tail_scores[static_cast<size_t>(i)];
    auto place = static_cast<uint32_t>(head->positions.size());
    if (i < filled) {
      head->positions.push_back(position);
      head->scores.push_back(score);
    } else {
      if (head->heap.empty() || !(score > head->scores[head->heap.front()])) continue;
      std::pop_heap(head->heap.begin(), head->heap.end(), later);
      place = head->heap.back();
      head->heap.pop_back();
      head->positions[place] = position;
      head->scores[place] = score;
    }
    changed.push_back(place);
    if (position < options_.sinks) continue;
    head->heap.push_back(place);
    std::push_heap(head->heap.begin(), head->heap.end(), later);
  }
  head->tail_scores.erase(head->tail_scores.begin(), head->tail_scores.begin() + (end - first));
  if (scores_contents()) head->tail_scores.shrink_to_fit();
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  return changed;
}

void EvictionSequence::absorb(int64_t layer, int64_t first, int64_t end, int64_t filled) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  std::vector<std::vector<uint32_t>> changed(state.heads.size());
  for_each(shape().n_kv_heads, [&](int64_t h) {
    changed[static_cast<size_t>(h)] = place(&state.heads[static_cast<size_t>(h)], first, end, filled);
  });
  state.kept.reserve(kept_, kept_ + filled);
  for (const std::vector<uint32_t>& places : changed) {
    for (const uint32_t place : places) state.kept.own(place);
  }
  for_each(shape().n_kv_heads, [&](int64_t h) {
    std::vector<float> k(static_cast<size_t>(shape().head_dim)), v(k.size());
    for (const uint32_t place : changed[static_cast<size_t>(h)]) {
      tail(layer).load(state.heads[static_cast<size_t>(h)].positions[place], h, k.data(), v.data());
      state.kept.store(place, h, k.data(), v.data());
    }
  });
}

CacheStats EvictionSequence::stats() const {
  CacheStats stats = TailedSequence::stats();
  stats.tokens_kept += kept_;
  for (const Layer& layer : layers_) {
    stats.bytes += layer.kept.bytes();
    if (may_share()) stats.shared_bytes += layer.kept.shared_bytes();
  }
  return stats;
}

std::vector<int64_t> EvictionSequence::represented(int64_t layer, int64_t head) const {
  const std::vector<int32_t> slots = slot_positions(layer, head);
  std::vector<int64_t> positions(slots.begin(), slots.end());
  for (int64_t position = tail_first(); position < tokens(); ++position) positions.push_back(position);
  return positions;
}

std::vector<int32_t> EvictionSequence::slot_positions(int64_t layer, int64_t head) const {
  return layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)].positions;
}

}  // namespace smartkv
