#include "cache/eviction/eviction_sequence.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "cache/eviction/token_scorer.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr int64_t kSlotBytes = sizeof(int32_t) + sizeof(float) + sizeof(uint32_t);  // position, score, place in the heap
constexpr int64_t kPackedBytes = sizeof(int32_t);  // of a token in a packed page: its position
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

int64_t eviction_packed(const EvictionOptions& options, int64_t prompt_tokens) {
  const int64_t slots = eviction_slots(options), leaving = prompt_tokens - whole_pages(options.window);
  if (!options.packed || !options.exact_prefill || leaving <= 0) return 0;
  const int64_t open = whole_pages(slots / 4);  // for what comes after the prompt
  return std::min(slots - open, leaving) / kPageTokens * kPageTokens;
}

int64_t eviction_max_bytes(const CacheShape& shape, const EvictionOptions& options, int64_t prompt_tokens,
                           int64_t n_tokens) {
  const int64_t packed = eviction_packed(options, prompt_tokens), slots = eviction_slots(options) - packed;
  const int64_t pruned = std::min(whole_pages(n_tokens) + kPageTokens, slots + whole_pages(options.window) + 2 * kPageTokens);
  const int64_t most = options.exact_prefill ? std::max(pruned, whole_pages(std::min(prompt_tokens, n_tokens))) : pruned;
  const int64_t heads = shape.n_layers * shape.n_kv_heads;
  // At a boundary a layer's slots are filled before its tail is dropped.
  const int64_t moved = dense_bytes(shape, std::min(slots, most)) / shape.n_layers;
  const int64_t pages = packed == 0 ? 0 : shape.n_layers * packed / kPageTokens * quantized_bytes(shape, *options.packed);
  return dense_bytes(shape, most) + moved + pages +
         heads * (slots * kSlotBytes + packed * kPackedBytes + most * kAttentionBytes);
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
  for (const auto& page : layers_[static_cast<size_t>(layer)].packed) segments->push_back(page->segment());
  layers_[static_cast<size_t>(layer)].kept.append_view(kept_, segments);
  TailedSequence::view(layer, n_new, segments);
}

TokenRange EvictionSequence::probes(int64_t n) const {
  return {std::max(tokens(), next_boundary() - scorer_->n_probes()), std::min(tokens() + n, next_boundary())};
}

void EvictionSequence::observe(int64_t layer, const Probe& probe) {
  const int64_t scored = kept_ + probe.position + 1 - tail_first(), seen = packed_ + scored;
  std::vector<Head>& heads = layers_[static_cast<size_t>(layer)].heads;
  if (static_cast<int64_t>(probe.mass.size()) != seen * static_cast<int64_t>(heads.size())) {
    throw CacheError("observe: expected the mass of " + std::to_string(heads.size()) + " KV heads over " +
                     std::to_string(seen) + " tokens, found " + std::to_string(probe.mass.size()) + " values");
  }
  const float* from = probe.mass.data();
  for (Head& head : heads) {
    from += packed_;  // those stay
    head.mass.resize(static_cast<size_t>(scored));
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

int64_t EvictionSequence::packs_at(int64_t boundary) const {
  return boundary == boundaries().prompt_tokens ? eviction_packed(options_, boundary) / kPageTokens : 0;
}

// Layer by layer, so that a layer's lost tokens make room for the next one's slots.
void EvictionSequence::compact() {
  const int64_t first = tail_first(), end = boundaries().leaving(tokens()), pages = packs_at(tokens());
  const int64_t packed = packed_ + pages * kPageTokens;
  const int64_t filled = std::min(slots_ - packed - kept_, end - first - pages * kPageTokens);
  if (scores_contents()) score_contents(end);
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    absorb(layer, first, end, pages, filled);
    tail(layer).drop_before(end);
  }
  packed_ = packed;
  kept_ += filled;
  state_.set(state_bytes());
}

int64_t EvictionSequence::compaction_growth(int64_t end) const {
  int64_t kept = kept_, packed = 0, peak = 0;
  if (next_boundary() <= end) {
    const int64_t gone = boundaries().leaving(next_boundary()), pages = packs_at(next_boundary());
    packed = pages * kPageTokens;
    kept += std::min(slots_ - packed_ - packed - kept_, gone - tail_first() - packed);
    int64_t bytes = 0;
    for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
      bytes += layers_[static_cast<size_t>(layer)].kept.growth(0, kept);
      if (pages > 0) bytes += pages * quantized_bytes(shape(), *options_.packed);
      peak = std::max(peak, bytes);
      bytes -= tail(layer).own_bytes_before(std::min(gone, tokens() / kPageTokens * kPageTokens));
    }
    peak = std::max(peak, bytes);
    if (boundaries().after(next_boundary()) <= end) {  // of later ones, without what they give back
      const int64_t most = std::min(slots_ - packed_ - packed, whole_pages(end));
      peak += dense_bytes(shape(), std::max<int64_t>(0, most - kept));
      kept = std::max(kept, most);
    }
  }
  const int64_t heads = shape().n_layers * shape().n_kv_heads;
  if (scores_contents()) {
    const int64_t prompt = boundaries().prompt_tokens;
    const int64_t scores = tokens() < prompt ? std::max<int64_t>(0, std::min(end, prompt) - scored_) : 0;
    return peak + heads * ((kept - kept_) * kSlotBytes + packed * kPackedBytes + scores * static_cast<int64_t>(sizeof(float)));
  }
  if (kept == kept_ && packed == 0 && probes(end - tokens()).empty()) return peak;
  const int64_t state = heads * (kept * kSlotBytes + (packed_ + packed) * kPackedBytes +
                                 (kept + end - tail_first()) * kAttentionBytes);
  return peak + std::max<int64_t>(0, state - state_.bytes());
}

int64_t EvictionSequence::state_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      bytes += static_cast<int64_t>(head.positions.size()) * kSlotBytes +
               static_cast<int64_t>(head.packed.size()) * kPackedBytes +
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

std::vector<int32_t> EvictionSequence::choose(Head* head, int64_t first, int64_t n, int64_t packed) const {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (packed == 0) return order;
  const auto better = [&](int32_t a, int32_t b) {
    const bool sink_a = first + a < options_.sinks, sink_b = first + b < options_.sinks;
    const float score_a = head->tail_scores[static_cast<size_t>(a)], score_b = head->tail_scores[static_cast<size_t>(b)];
    return sink_a != sink_b ? sink_a : score_a != score_b ? score_a > score_b : a < b;
  };
  std::nth_element(order.begin(), order.begin() + packed - 1, order.end(), better);
  std::sort(order.begin(), order.begin() + packed);
  for (int64_t i = 0; i < packed; ++i) head->packed.push_back(static_cast<int32_t>(first) + order[static_cast<size_t>(i)]);
  std::sort(order.begin() + packed, order.end());
  order.erase(order.begin(), order.begin() + packed);
  return order;
}

void EvictionSequence::pack(int64_t layer) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  const auto pages = static_cast<int64_t>(state.heads[0].packed.size()) / kPageTokens;
  state.packed.resize(static_cast<size_t>(pages));
  for_each(pages, [&](int64_t i) {
    std::vector<float> k(static_cast<size_t>(heads * kPageTokens * dim)), v(k.size());
    for (int64_t row = 0; row < heads * kPageTokens; ++row) {
      const int64_t h = row / kPageTokens, entry = i * kPageTokens + row % kPageTokens;
      const int32_t position = state.heads[static_cast<size_t>(h)].packed[static_cast<size_t>(entry)];
      tail(layer).load(position, h, k.data() + row * dim, v.data() + row * dim);
    }
    state.packed[static_cast<size_t>(i)] =
        std::make_shared<QuantizedPage>(context().pool, *options_.packed, nullptr, k.data(), v.data());
  });
}

std::vector<uint32_t> EvictionSequence::place(Head* head, int64_t first, const std::vector<int32_t>& tokens,
                                              int64_t filled) const {
  // The heap's order: less valuable first, of equals the older.
  const auto later = [head](uint32_t a, uint32_t b) {
    return head->scores[a] != head->scores[b] ? head->scores[a] > head->scores[b] : head->positions[a] > head->positions[b];
  };
  if (!scores_contents()) std::make_heap(head->heap.begin(), head->heap.end(), later);
  const auto room = static_cast<size_t>(kept_ + filled);
  head->positions.reserve(room);
  head->scores.reserve(room);
  head->heap.reserve(room);
  std::vector<uint32_t> changed;
  for (const int32_t i : tokens) {
    const auto position = static_cast<int32_t>(first + i);
    const float score = head->tail_scores[static_cast<size_t>(i)];
    auto place = static_cast<uint32_t>(head->positions.size());
    if (place < room) {
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
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  return changed;
}

void EvictionSequence::absorb(int64_t layer, int64_t first, int64_t end, int64_t pages, int64_t filled) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  std::vector<std::vector<uint32_t>> changed(state.heads.size());
  for_each(shape().n_kv_heads, [&](int64_t h) {
    Head& head = state.heads[static_cast<size_t>(h)];
    if (!scores_contents()) score_attention(&head, first);
    const std::vector<int32_t> tokens = choose(&head, first, end - first, pages * kPageTokens);
    changed[static_cast<size_t>(h)] = place(&head, first, tokens, filled);
    head.tail_scores.erase(head.tail_scores.begin(), head.tail_scores.begin() + (end - first));
    if (scores_contents()) head.tail_scores.shrink_to_fit();
  });
  if (pages > 0) pack(layer);
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
  stats.tokens_kept += packed_ + kept_;
  for (const Layer& layer : layers_) {
    stats.bytes += layer.kept.bytes();
    for (const auto& page : layer.packed) {
      stats.bytes += page->bytes();
      if (page.use_count() > 1) stats.shared_bytes += page->bytes();
    }
    if (may_share()) stats.shared_bytes += layer.kept.shared_bytes();
  }
  return stats;
}

std::vector<int64_t> EvictionSequence::represented(int64_t layer, int64_t head) const {
  const Head& state = layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)];
  std::vector<int64_t> positions(state.packed.begin(), state.packed.end());
  positions.insert(positions.end(), state.positions.begin(), state.positions.end());
  for (int64_t position = tail_first(); position < tokens(); ++position) positions.push_back(position);
  return positions;
}

std::vector<int32_t> EvictionSequence::slot_positions(int64_t layer, int64_t head) const {
  return layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)].positions;
}

}  // namespace smartkv
