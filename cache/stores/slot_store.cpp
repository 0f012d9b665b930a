#include "cache/stores/slot_store.h"

#include <numeric>

namespace smartkv {
namespace {

using kernels::kPageTokens;
using Token = EvictedTokens::Token;

// Bytes of state per token with a slot: position, score, place in the heap.
constexpr int64_t kSlotBytes = sizeof(int32_t) + sizeof(float) + sizeof(uint32_t);
// Bytes of state per token in a packed page: its position.
constexpr int64_t kPackedBytes = sizeof(int32_t);

}  // namespace

Boundaries EvictionOptions::boundaries() const {
  return {whole_pages(window), exact_prefill ? Boundaries::kNever : kPageTokens, 0};
}

EvictionOptions read_eviction_options(Parameters* parameters, const CacheShape& shape) {
  constexpr int64_t kMost = int64_t{1} << 24;
  EvictionOptions options;
  options.tokens = parameters->integer("tokens", options.tokens, 1, kMost, "kept in all, on average over the heads");
  options.sinks = parameters->integer("sinks", options.sinks, 0, kMost, "first tokens, which stay");
  options.window = parameters->integer("window", options.window, 1, kMost, "most recent tokens, which stay");
  options.exact_prefill = parameters->choice("prefill", "exact", {"exact", "streaming"},
                                             "evicts at the prompt's end, or from its first tokens on") == "exact";
  const std::string kept = parameters->choice("kept", "dense", {"dense", "k8v8", "k8v4", "k4v4", "k3v3", "k2v2"},
                                              "how eviction at a prompt's end stores three quarters of its tokens");
  if (kept != "dense") options.packed = uniform_layout(shape, kept[1] - '0', kept[3] - '0');
  check_eviction(options);
  return options;
}

int64_t eviction_slots(const EvictionOptions& options) {
  const int64_t room = options.tokens - whole_pages(options.window) - kPageTokens;
  return room / kPageTokens * kPageTokens;
}

void check_eviction(const EvictionOptions& options) {
  if (eviction_slots(options) >= std::max<int64_t>(options.sinks, kPageTokens)) return;
  const int64_t least = whole_pages(options.window) + kPageTokens + whole_pages(std::max<int64_t>(options.sinks, 1));
  throw CacheError("kv_cache.tokens: expected at least " + std::to_string(least) + " (window " +
                   std::to_string(options.window) + " and sinks " + std::to_string(options.sinks) +
                   " in whole pages, and one partly filled page), found " + std::to_string(options.tokens));
}

int64_t eviction_packed(const EvictionOptions& options, int64_t prompt_tokens) {
  const int64_t slots = eviction_slots(options), leaving = prompt_tokens - whole_pages(options.window);
  if (!options.packed || !options.exact_prefill || leaving <= 0) return 0;
  const int64_t open = whole_pages(slots / 4);  // For tokens that follow the prompt.
  return std::min(slots - open, leaving) / kPageTokens * kPageTokens;
}

int64_t scored_tail(const TokenScorer& scorer, const StageView& view, const Moment& then, int64_t scored) {
  const int64_t prompt = view.boundaries.prompt_tokens;
  const bool unknown = prompt == 0;  // The prompt may have ended at any token.
  if (n_probes(scorer) > 0) return (unknown ? then.tokens : then.last) - then.left;
  if (unknown || view.tokens <= prompt) {
    const int64_t seen = unknown ? then.tokens : std::min(then.tokens, prompt);
    scored = std::min(seen, view.boundaries.leaving(std::min(then.next, view.boundaries.next(seen))));
  }
  return std::max<int64_t>(0, scored - then.left);
}

SlotStoreFactory::SlotStoreFactory(const EvictionOptions& options, TokenScorer scorer)
    : options_(options), scorer_(std::move(scorer)) {
  if (!options.packed || options.exact_prefill) return;
  throw CacheError(
      "kv_cache.kept: expected \"dense\" with heads of equal size and prefill \"streaming\", because only "
      "the prune at the prompt's end quantizes");
}

bool SlotStoreFactory::exchanges() const { return pools_heads(scorer_); }

std::unique_ptr<TokenStore> SlotStoreFactory::create(const PolicyContext& context) const {
  return std::make_unique<SlotStore>(context, options_, scorer_);
}

SlotStore::SlotStore(const PolicyContext& context, const EvictionOptions& options, TokenScorer scorer)
    : context_(context),
      options_(options),
      scorer_(std::move(scorer)),
      slots_(eviction_slots(options)),
      layers_(static_cast<size_t>(context.shape.n_layers), Layer(context)),
      state_(context.pool) {}

int64_t SlotStore::n_probes() const { return smartkv::n_probes(scorer_); }

void SlotStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  for (const QuantizedPageRef& page : layers_[static_cast<size_t>(layer)].packed) segments->push_back(page->segment());
  layers_[static_cast<size_t>(layer)].kept.append_view(kept_, segments);
}

void SlotStore::positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const {
  const Head& state = layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)];
  positions->insert(positions->end(), state.packed.begin(), state.packed.end());
  positions->insert(positions->end(), state.positions.begin(), state.positions.end());
}

const std::vector<int32_t>& SlotStore::slot_positions(int64_t layer, int64_t head) const {
  return layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)].positions;
}

void SlotStore::observe(const StageView& /*view*/, int64_t layer, const StoreProbe& probe) {
  const float* row = probe.mass;
  for (Head& head : layers_[static_cast<size_t>(layer)].heads) {
    head.mass.resize(static_cast<size_t>(kept_ + probe.n_tail));
    const float* slots = row + probe.entry + packed_;  // Packed tokens stay, so their mass does not matter.
    for (int64_t i = 0; i < kept_; ++i) head.mass[static_cast<size_t>(i)] += slots[i];
    for (int64_t i = 0; i < probe.n_tail; ++i) head.mass[static_cast<size_t>(kept_ + i)] += row[probe.tail + i];
    row += probe.stride;
  }
  state_.set(state_bytes());
}

// Scores the prompt's tokens as they come, so that its end does not stall other sequences.
void SlotStore::see(const StageView& view) {
  if (!scores_contents()) return;
  score_contents(view, std::min(view.tokens, view.leaving()));
  state_.set(state_bytes());
}

void SlotStore::truncate(const StageView& view, int64_t n) {
  if (!scores_contents() || scored_ <= n) return;
  scored_ = n;
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) head.tail_scores.resize(static_cast<size_t>(n - view.tail_first));
  }
  state_.set(state_bytes());
}

void SlotStore::score_contents(const StageView& view, int64_t end) {
  score_tail(context_, scorer_, view, &scored_, end, false, [&](int64_t layer, const TokenScores& run) {
    std::vector<Head>& heads = layers_[static_cast<size_t>(layer)].heads;
    for (size_t h = 0; h < heads.size(); ++h) {
      const std::span<const float> scores = run.of_head(static_cast<int64_t>(h));
      heads[h].tail_scores.insert(heads[h].tail_scores.end(), scores.begin(), scores.end());
    }
  });
}

int64_t SlotStore::packs_at(const StageView& view) const {
  const int64_t prompt = view.boundaries.prompt_tokens;
  return view.next_boundary == prompt ? eviction_packed(options_, prompt) : 0;
}

int64_t SlotStore::fills_at(const StageView& view) const {
  const int64_t packed = packs_at(view);
  return std::min(slots_ - packed_ - packed - kept_, view.leaving() - view.tail_first - packed);
}

void SlotStore::prepare(const StageView& view) {
  if (scores_contents()) score_contents(view, view.leaving());
  if (pools_heads(scorer_)) pool_attention(view);
}

void SlotStore::pool_attention(const StageView& view) {
  // All heads keep the same tokens at the same places, because they have the same scores.
  const auto n = static_cast<size_t>(kept_ + view.tokens - view.tail_first);
  std::vector<double> sums(layers_.size() * n);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (Head& head : layers_[layer].heads) {
      head.mass.resize(n);
      for (size_t i = 0; i < n; ++i) sums[layer * n + i] += head.mass[i];
    }
  }
  context_.sum(sums);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (Head& head : layers_[layer].heads) {
      for (size_t i = 0; i < n; ++i) {
        head.mass[i] = static_cast<float>(sums[layer * n + i] / static_cast<double>(context_.all_kv_heads()));
      }
    }
  }
}

void SlotStore::take(const StageView& view, int64_t layer, EvictedTokens* leaving) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t first = view.tail_first, packed = packs_at(view), filled = fills_at(view);
  std::vector<std::vector<uint32_t>> changed(state.heads.size());
  for (int64_t h = 0; h < shape().n_kv_heads; ++h) {
    Head& head = state.heads[static_cast<size_t>(h)];
    if (!scores_contents()) score_attention(&head, view.tokens - first);
    const std::vector<Token> tokens = choose(&head, leaving->of(h), packed);
    const std::vector<int32_t> before = options_.hand_on ? head.positions : std::vector<int32_t>();
    changed[static_cast<size_t>(h)] = place(&head, first, tokens, filled);
    leaving->leave(h, options_.hand_on ? lost(state, h, tokens, before, leaving) : std::vector<Token>());
    head.tail_scores.erase(head.tail_scores.begin(), head.tail_scores.begin() + (view.leaving() - first));
    if (scores_contents()) head.tail_scores.shrink_to_fit();
  }
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  if (packed > 0) pack(&state, tail);
  state.kept.reserve(kept_, kept_ + filled);
  std::vector<kernels::TokenMove> moves;
  for (int64_t h = 0; h < shape().n_kv_heads; ++h) {
    for (const uint32_t place : changed[static_cast<size_t>(h)]) {
      state.kept.own(place);
      moves.push_back(
          {tail.place(state.heads[static_cast<size_t>(h)].positions[place], h), state.kept.place(place, h)});
    }
  }
  context_.pool->backend()->move(shape().type, shape().head_dim, moves);
}

void SlotStore::finish(const StageView& view) {
  const int64_t packed = packs_at(view), filled = fills_at(view);
  packed_ += packed;
  kept_ += filled;
  state_.set(state_bytes());
}

StoreBytes SlotStore::bytes_at(const StageView& view, const Moment& then) const {
  const int64_t came = then.left - view.tail_first;
  const bool packs = came > 0 && view.tail_first == 0;
  const int64_t packed = packs ? eviction_packed(options_, view.boundaries.prompt_tokens) : packed_;
  const int64_t kept = kept_ + std::min(slots_ - packed - kept_, came - (packed - packed_));
  const int64_t page = options_.packed ? quantized_bytes(shape(), *options_.packed) : 0;
  StoreBytes bytes{.pages = dense_bytes(shape(), kept) + shape().n_layers * packed / kPageTokens * page};
  for (const Layer& layer : layers_) {
    if (came > 0 && view.may_share) bytes.pages += layer.kept.shared_bytes();
    if (then.last != view.next_boundary) continue;
    bytes.take.push_back(layer.kept.growth(0, kept) + (packed - packed_) / kPageTokens * page);
  }
  const int64_t tail = scored_tail(scorer_, view, then, scored_);
  const int64_t mass = then.probes(n_probes()) > 0 ? kept + then.tokens - then.left : 0;
  bytes.state = shape().n_layers * shape().n_kv_heads *
                (kept * kSlotBytes + packed * kPackedBytes + (tail + mass) * static_cast<int64_t>(sizeof(float)));
  return bytes;
}

int64_t SlotStore::state_bytes() const {
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

void SlotStore::score_attention(Head* head, int64_t n_tail) const {
  const auto tail = static_cast<size_t>(n_tail), kept = static_cast<size_t>(kept_);
  head->tail_scores.resize(tail);
  head->mass.resize(kept + tail);
  // Sort by position: evictions leave the places in any order.
  std::vector<size_t> order(kept + tail);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.begin() + kept_,
            [&](size_t a, size_t b) { return head->positions[a] < head->positions[b]; });
  const auto score = [&](size_t i) -> float& { return i < kept ? head->scores[i] : head->tail_scores[i - kept]; };
  std::vector<float> previous, mass;
  for (const size_t i : order) {
    previous.push_back(score(i));
    mass.push_back(head->mass[i]);
  }
  attention_scorer(scorer_)->score(previous, mass);
  for (size_t i = 0; i < order.size(); ++i) score(order[i]) = mass[i];
  std::vector<float>().swap(head->mass);
}

std::vector<Token> SlotStore::choose(Head* head, std::span<const Token> tokens, int64_t packed) const {
  std::vector<Token> order(tokens.begin(), tokens.end());
  if (packed == 0) return order;
  const int32_t first = order.front().position;
  const auto better = [&](const Token& a, const Token& b) {
    const bool sink_a = a.position < options_.sinks, sink_b = b.position < options_.sinks;
    const float score_a = head->tail_scores[static_cast<size_t>(a.position - first)];
    const float score_b = head->tail_scores[static_cast<size_t>(b.position - first)];
    return sink_a != sink_b ? sink_a : score_a != score_b ? score_a > score_b : a.position < b.position;
  };
  const auto earlier = [](const Token& a, const Token& b) { return a.position < b.position; };
  std::nth_element(order.begin(), order.begin() + packed - 1, order.end(), better);
  std::sort(order.begin(), order.begin() + packed, earlier);
  for (int64_t i = 0; i < packed; ++i) head->packed.push_back(order[static_cast<size_t>(i)].position);
  std::sort(order.begin() + packed, order.end(), earlier);
  order.erase(order.begin(), order.begin() + packed);
  return order;
}

void SlotStore::pack(Layer* layer, const DenseLayer& tail) const {
  const int64_t heads = shape().n_kv_heads;
  std::vector<kernels::TokenPlace> places(static_cast<size_t>(heads * kPageTokens));
  const auto n = static_cast<int64_t>(layer->heads[0].packed.size());
  for (int64_t first = 0; first < n; first += kPageTokens) {
    for (int64_t row = 0; row < heads * kPageTokens; ++row) {
      const int64_t h = row / kPageTokens, entry = first + row % kPageTokens;
      const int32_t position = layer->heads[static_cast<size_t>(h)].packed[static_cast<size_t>(entry)];
      places[static_cast<size_t>(row)] = tail.place(position, h);
    }
    layer->packed.push_back(
        std::make_shared<QuantizedPage>(context_.pool, *options_.packed, nullptr, kernels::PageSource{places}));
  }
}

std::vector<uint32_t> SlotStore::place(Head* head, int64_t first, std::span<const Token> tokens, int64_t filled) const {
  // The heap's order: the least valuable on top; of equals, the older.
  const auto later = [head](uint32_t a, uint32_t b) {
    return head->scores[a] != head->scores[b] ? head->scores[a] > head->scores[b]
                                              : head->positions[a] > head->positions[b];
  };
  if (!scores_contents()) std::make_heap(head->heap.begin(), head->heap.end(), later);
  const auto room = static_cast<size_t>(kept_ + filled);
  head->positions.reserve(room);
  head->scores.reserve(room);
  head->heap.reserve(room);
  std::vector<uint32_t> changed;
  for (const Token& token : tokens) {
    const float score = head->tail_scores[static_cast<size_t>(token.position - first)];
    auto place = static_cast<uint32_t>(head->positions.size());
    if (place < room) {
      head->positions.push_back(token.position);
      head->scores.push_back(score);
    } else {
      if (head->heap.empty() || !(score > head->scores[head->heap.front()])) continue;
      std::pop_heap(head->heap.begin(), head->heap.end(), later);
      place = head->heap.back();
      head->heap.pop_back();
      head->positions[place] = token.position;
      head->scores[place] = score;
    }
    changed.push_back(place);
    if (token.position < options_.sinks) continue;
    head->heap.push_back(place);
    std::push_heap(head->heap.begin(), head->heap.end(), later);
  }
  std::sort(changed.begin(), changed.end());
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  return changed;
}

std::vector<Token> SlotStore::lost(const Layer& layer, int64_t h, std::span<const Token> tokens,
                                   const std::vector<int32_t>& before, EvictedTokens* leaving) const {
  const std::vector<int32_t>& now = layer.heads[static_cast<size_t>(h)].positions;
  std::vector<Token> lost;
  for (size_t place = 0; place < before.size(); ++place) {
    if (now[place] == before[place]) continue;
    lost.push_back(leaving->give_up(h, before[place], layer.kept.place(static_cast<int64_t>(place), h)));
  }
  std::vector<int32_t> held(now);
  std::sort(held.begin(), held.end());
  for (const Token& token : tokens) {
    if (!std::binary_search(held.begin(), held.end(), token.position)) lost.push_back(token);
  }
  std::sort(lost.begin(), lost.end(), [](const Token& a, const Token& b) { return a.position < b.position; });
  return lost;
}

void SlotStore::save(StateWriter* out) const {
  out->fields(packed_, kept_, scored_);
  for (const Layer& layer : layers_) {
    for (const QuantizedPageRef& page : layer.packed) page->save(out);
    layer.kept.save(kept_, out);
    for (const Head& head : layer.heads) {
      out->fields(head.packed, head.positions, head.scores, head.heap, head.tail_scores, head.mass);
    }
  }
}

void SlotStore::load(const StageView& view, StateReader* in) {
  in->fields(packed_, kept_, scored_);
  in->expect(packed_ >= 0 && packed_ <= slots_ && packed_ % kPageTokens == 0 && (packed_ == 0 || options_.packed),
             "a count of packed tokens");
  in->expect(kept_ >= 0 && kept_ <= slots_ - packed_, "a count of slots");
  in->expect(scores_contents() ? scored_ >= view.tail_first && scored_ <= view.tokens : scored_ == 0,
             "a count of scores");
  for (Layer& layer : layers_) {
    for (int64_t i = 0; i < packed_ / kPageTokens; ++i) {
      layer.packed.push_back(std::make_shared<QuantizedPage>(context_.pool, nullptr, in));
    }
    layer.kept.load(0, kept_, in);
    for (Head& head : layer.heads) load_head(view, in, &head);
  }
  state_.set(state_bytes());
}

void SlotStore::load_head(const StageView& view, StateReader* in, Head* head) const {
  const auto left = [&](int32_t position) { return position >= 0 && position < view.tail_first; };
  in->fields(head->packed, head->positions, head->scores, head->heap, head->tail_scores, head->mass);
  const auto kept = static_cast<size_t>(kept_), tail = static_cast<size_t>(view.tokens - view.tail_first);
  in->expect(head->packed.size() == static_cast<size_t>(packed_) &&
                 std::all_of(head->packed.begin(), head->packed.end(), left),
             "the positions of packed tokens");
  in->expect(head->positions.size() == kept && std::all_of(head->positions.begin(), head->positions.end(), left),
             "the positions of kept tokens");
  in->expect(head->scores.size() == kept, "a score for each slot");
  in->expect(head->heap.size() <= kept &&
                 std::all_of(head->heap.begin(), head->heap.end(), [&](uint32_t place) { return place < kept; }),
             "a heap of slots");
  const int64_t scored = scores_contents() ? scored_ - view.tail_first : 0;
  in->expect(!scores_contents() || static_cast<int64_t>(head->tail_scores.size()) == scored, "scores of the tail");
  in->expect(head->tail_scores.size() <= tail &&
                 (head->mass.empty() || (head->mass.size() >= kept && head->mass.size() <= kept + tail)),
             "scores and mass of the tail");
}

int64_t SlotStore::stable_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) bytes += bytes_of(layer.packed);
  return bytes;
}

void SlotStore::add_stats(const StageView& view, CacheStats* stats) const {
  stats->tokens_kept += packed_ + kept_;
  stats->bytes += state_.bytes();
  for (const Layer& layer : layers_) {
    stats->bytes += layer.kept.bytes() + bytes_of(layer.packed);
    if (view.may_share) stats->shared_bytes += layer.kept.shared_bytes() + shared_bytes_of(layer.packed);
  }
}

}  // namespace smartkv
