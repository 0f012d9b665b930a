#include "cache/stages/shared_slot_store.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "cache/stages/token_scorer.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using Token = LeavingTokens::Token;

constexpr int64_t kUnitBytes = sizeof(int32_t);

// Of a token that has a slot: its position and what it is worth.
int64_t slot_bytes(bool ranks) { return static_cast<int64_t>(sizeof(int32_t) + (ranks ? 2 : 1) * sizeof(float)); }
int64_t score_bytes(bool ranks) { return static_cast<int64_t>((ranks ? 2 : 1) * sizeof(float)); }

bool counts_importance(const SharedSlotOptions& options, const TokenScorer& scorer) {
  return options.margin < 1 && scorer.knows_importance();
}

}  // namespace

int64_t least_units(const EvictionOptions& options) { return whole_pages(std::max<int64_t>(options.sinks, 1)) / kPageTokens; }

int64_t SharedSlotOptions::dense_slots() const {
  const int64_t slots = eviction_slots(eviction);
  if (!eviction.packed) return slots;
  return std::min(slots, std::max(whole_pages(slots / 8), least_units(eviction) * kPageTokens));
}

SharedSlotStoreFactory::SharedSlotStoreFactory(const SharedSlotOptions& options, std::unique_ptr<TokenScorer> scorer)
    : options_(options), scorer_(std::move(scorer)) {}

SharedSlotStoreFactory::~SharedSlotStoreFactory() = default;

std::unique_ptr<StoreFactory> make_slot_store(bool shared, const SharedSlotOptions& options, std::unique_ptr<TokenScorer> scorer) {
  if (!shared) return std::make_unique<SlotStoreFactory>(options.eviction, std::move(scorer));
  if (!scorer->comparable()) {
    throw CacheError("kv_cache.sizes: \"shared\" compares tokens of all layers and heads, which scores of \"" + scorer->name() +
                     "\" do not allow");
  }
  return std::make_unique<SharedSlotStoreFactory>(options, std::move(scorer));
}

std::unique_ptr<TokenStore> SharedSlotStoreFactory::create(const PolicyContext& context) const {
  return std::make_unique<SharedSlotStore>(context, options_, scorer_);
}

StoreFactory::Bytes SharedSlotStoreFactory::max_bytes(const PolicyContext& context, int64_t prompt_tokens,
                                                      int64_t n_tokens, int64_t n_left) const {
  const CacheShape& shape = context.shape;
  const int64_t page = dense_bytes(shape, kPageTokens) / shape.n_layers;
  const int64_t slots = std::min(options_.dense_slots(), n_left), packed = std::min(options_.packed_tokens(), n_left);
  const auto packed_bytes = [&](int64_t tokens) {  // of a layer, all its KV heads
    return tokens == 0 ? 0 : tokens / kPageTokens * quantized_bytes(shape, *options_.eviction.packed);
  };
  // A layer that gets another page has it before its tail's page goes.
  Bytes bytes{dense_bytes(shape, slots) + shape.n_layers * packed_bytes(packed) + std::min(shape.n_layers, context.workers()) * page, 0};
  bytes.layer_pages = std::min(dense_bytes(shape, slots), dense_bytes(shape, n_left) / shape.n_layers) +
                      std::min(shape.n_layers * packed_bytes(packed), packed == 0 ? 0 : packed_bytes(n_left));
  const bool ranks = counts_importance(options_, *scorer_);
  bytes.layer_rise = page;  // units that go make room for those that come before they do
  const int64_t prompt = options_.eviction.exact_prefill ? options_.eviction.boundaries().leaving(std::min(prompt_tokens, n_tokens)) : 0;
  const int64_t most_scored = std::min(n_tokens, std::max(prompt, kPageTokens));
  bytes.state = shape.n_layers * shape.n_kv_heads *
                (slots * slot_bytes(ranks) + slots / kPageTokens * kUnitBytes +
                 packed / kPageTokens * SharedSlotStore::packed_state_bytes(ranks) + most_scored * score_bytes(ranks));
  if (scorer_->n_probes() > 0) {
    Boundaries boundaries = options_.eviction.boundaries();
    boundaries.prompt_tokens = prompt_tokens;
    const int64_t tail = whole_pages(boundaries.most_in_tail(n_tokens) + 1);
    bytes.state += attention_bytes(shape.n_layers * shape.n_kv_heads, slots + packed, tail);
  }
  return bytes;
}

SharedSlotStore::SharedSlotStore(const PolicyContext& context, const SharedSlotOptions& options,
                                 std::shared_ptr<const TokenScorer> scorer)
    : context_(&context),
      options_(options),
      scorer_(std::move(scorer)),
      packed_most_(context.shape.n_layers * context.shape.n_kv_heads * options.packed_tokens() / kPageTokens),
      layers_(static_cast<size_t>(context.shape.n_layers), Layer(context)),
      state_(context.pool) {}

int64_t SharedSlotStore::budget_pages() const { return shape().n_layers * options_.dense_slots() / kPageTokens; }

int64_t SharedSlotStore::pages() const {
  int64_t pages = 0;
  for (const Layer& layer : layers_) pages += layer.kept.n_pages();
  return pages;
}

int64_t SharedSlotStore::packed_units() const {
  size_t units = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) units += head.packed.size();
  }
  return static_cast<int64_t>(units);
}

int64_t SharedSlotStore::shared_packed_units() const {
  int64_t units = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      units += std::count_if(head.packed.begin(), head.packed.end(), [](const PackedUnit& u) { return u.page.use_count() > 1; });
    }
  }
  return units;
}

int64_t SharedSlotStore::packed_page_bytes() const {
  return packs() ? quantized_bytes(shape(), *options_.eviction.packed) / n_heads() : 0;
}

int64_t SharedSlotStore::packed_state_bytes(bool ranks) {
  return static_cast<int64_t>(sizeof(PackedUnit)) + kPageTokens * slot_bytes(ranks);
}

int64_t SharedSlotStore::leaving_pages(const StageView& view) const {
  return (view.leaving() - view.tail_first) / kPageTokens;
}

int64_t SharedSlotStore::entries(int64_t layer) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t whole = state.kept.whole_pages();
  int64_t units = whole + state.kept.n_units() - whole * n_heads();
  for (const Head& head : state.heads) units += static_cast<int64_t>(head.packed.size());
  return units * kPageTokens;
}

void SharedSlotStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  for (int64_t h = 0; h < n_heads(); ++h) {
    for (const PackedUnit& unit : state.heads[static_cast<size_t>(h)].packed) {
      segments->push_back(unit.page->segment().of_head(0, h));
    }
  }
  state.kept.view(segments);
}

void SharedSlotStore::represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const auto others = [&](size_t n) { positions->insert(positions->end(), n, SequenceCache::kOtherHead); };
  for (int64_t h = 0; h < n_heads(); ++h) {
    for (const PackedUnit& unit : state.heads[static_cast<size_t>(h)].packed) {
      if (h != head) others(unit.positions.size());
      if (h == head) positions->insert(positions->end(), unit.positions.begin(), unit.positions.end());
    }
  }
  const int64_t whole = state.kept.whole_pages() * kPageTokens;
  const std::vector<int32_t>& own = state.heads[static_cast<size_t>(head)].positions;
  positions->insert(positions->end(), own.begin(), own.begin() + whole);
  for (int64_t h = 0; h < n_heads(); ++h) {
    const std::vector<int32_t>& its = state.heads[static_cast<size_t>(h)].positions;
    if (h != head) others(its.size() - static_cast<size_t>(whole));
    if (h == head) positions->insert(positions->end(), its.begin() + whole, its.end());
  }
}

std::vector<int32_t> SharedSlotStore::kept_positions(int64_t layer, int64_t head) const {
  const Head& of = layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)];
  std::vector<int32_t> positions = of.positions;
  for (const PackedUnit& unit : of.packed) positions.insert(positions.end(), unit.positions.begin(), unit.positions.end());
  return positions;
}

// A prompt's tokens are scored as they come, so that its end stalls nobody.
void SharedSlotStore::see(const StageView& view) {
  if (!scores_contents()) return;
  score_contents(view, std::min(view.tokens, view.leaving()));
  state_.set(state_bytes());
}

void SharedSlotStore::truncate(const StageView& view, int64_t n) {
  if (!scores_contents() || scored_ <= n) return;
  scored_ = n;
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) {
      head.tail.score.resize(static_cast<size_t>(n - view.tail_first));
      if (ranks()) head.tail.importance.resize(head.tail.score.size());
    }
  }
  state_.set(state_bytes());
}

bool SharedSlotStore::ranks() const { return counts_importance(options_, *scorer_); }

void SharedSlotStore::score_contents(const StageView& view, int64_t end) {
  score_tail(*context_, *scorer_, view.tail, &scored_, end, ranks(), [&](int64_t layer, int64_t h, const TokenScores& run) {
    Scored& tail = layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(h)].tail;
    const auto add = [](std::span<const float> values, std::vector<float>* to) {  // what does not compare is worth nothing
      constexpr float kLeast = std::numeric_limits<float>::lowest(), kMost = std::numeric_limits<float>::max();
      for (const float x : values) to->push_back(std::isnan(x) ? kLeast : std::clamp(x, kLeast, kMost));
    };
    add(run.scores, &tail.score);
    add(run.importance, &tail.importance);
  });
}

void SharedSlotStore::prepare(const StageView& view) {
  if (scores_contents()) {
    score_contents(view, view.leaving());
  } else {
    score_attention(view);
  }
  share_budget(view.tail_first, view.leaving() - view.tail_first);
}

// The head's promoted tokens, neighbours by position in a unit.
void SharedSlotStore::pack(Layer* layer, int64_t head, const LeavingTokens& leaving) const {
  Head& of = layer->heads[static_cast<size_t>(head)];
  const std::span<const Token> tokens = leaving.of(head);
  const auto held = static_cast<uint32_t>(of.positions.size());
  std::vector<kernels::TokenPlace> places(kPageTokens);
  of.packed.reserve(of.packed.size() + of.promoted.size() / kPageTokens);
  for (size_t first = 0; first < of.promoted.size(); first += kPageTokens) {
    PackedUnit unit;
    for (size_t i = 0; i < kPageTokens; ++i) {
      const uint32_t candidate = of.promoted[first + i];
      const bool has_slot = candidate < held;
      const size_t at = has_slot ? candidate : candidate - held;
      places[i] = has_slot ? layer->kept.place(head, candidate) : leaving.place(head, tokens[at]);
      unit.positions.push_back(has_slot ? of.positions[at] : tokens[at].position);
      const Scored& scored = has_slot ? of.kept : of.tail;
      unit.tokens.score.push_back(scored.score[at]);
      if (ranks()) unit.tokens.importance.push_back(scored.importance[at]);
    }
    unit.page = std::make_shared<QuantizedPage>(context_->pool, *options_.eviction.packed, nullptr, kernels::PageSource{places}, 1);
    of.packed.push_back(std::move(unit));
  }
}

void SharedSlotStore::take(const StageView& view, int64_t layer, LeavingTokens* leaving) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  kernels::KvBackend& backend = *context_->pool->backend();
  std::vector<kernels::TokenMove> moves;
  std::vector<Changes> changes;
  std::vector<int64_t> units;
  for (int64_t h = 0; h < n_heads(); ++h) {
    Head& head = state.heads[static_cast<size_t>(h)];
    pack(&state, h, *leaving);
    changes.push_back(choose(&head, leaving->of(h)));
    leaving->leave(h, {});
    for (std::vector<float>* tail : {&head.tail.score, &head.tail.importance}) {
      if (!tail->empty()) tail->erase(tail->begin(), tail->begin() + (view.leaving() - view.tail_first));
      tail->shrink_to_fit();
    }
    std::vector<float>().swap(head.worth);
    std::vector<uint32_t>().swap(head.promoted);
    for (const auto& [from, to] : changes.back().moved) {
      moves.push_back({state.kept.place(h, from), state.kept.own_place(h, to)});
    }
    units.push_back(head.units_next);
  }
  backend.move(shape().type, shape().head_dim, moves);
  moves.clear();
  state.kept.resize(units);
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  for (int64_t h = 0; h < n_heads(); ++h) {
    for (const auto& [position, slot] : changes[static_cast<size_t>(h)].taken) {
      moves.push_back({tail.place(position, h), state.kept.own_place(h, slot)});
    }
  }
  backend.move(shape().type, shape().head_dim, moves);
}

void SharedSlotStore::finish(const StageView& /*view*/) { state_.set(state_bytes()); }

StoreGrowth SharedSlotStore::growth(const StageView& view, int64_t end) const {
  StoreGrowth growth;
  const int64_t page = context_->pool->page_bytes(), packed_page = packed_page_bytes();
  int64_t held = pages(), next = held, more_packed = 0;
  if (view.next_boundary <= end) {
    const int64_t added = leaving_pages(view);
    next = std::min(budget_pages(), held + shape().n_layers * added);
    // Units that go make room for those that come, unless somebody else holds them, too.
    more_packed = !packs() ? 0 : packed_most_ - packed_units() + (view.may_share ? shared_packed_units() : 0);
    int64_t dense_next = 0, packed_next = 0;
    for (const Layer& layer : layers_) {
      const int64_t dense = layer.kept.growth(added), packed = std::min(more_packed, layer.kept.n_units() + added * n_heads());
      growth.take.push_back(dense + packed * packed_page);
      dense_next += dense;
      packed_next = std::min(more_packed, packed_next + packed);
    }
    growth.take_most = (held == 0 ? next * page : dense_next) + packed_next * packed_page;
    if (view.boundaries.after(view.next_boundary) <= end) {
      const int64_t most = std::min(budget_pages(), shape().n_layers * whole_pages(end) / kPageTokens);
      growth.later = std::max<int64_t>(0, most - next) * page + more_packed * packed_page;
      next = std::max(next, most);
    }
  }
  const int64_t prompt = view.boundaries.prompt_tokens;
  const int64_t scored_end = view.next_boundary <= end ? std::max(view.leaving(), std::min(end, prompt)) : std::min(end, prompt);
  growth.state = (next - held) * n_heads() * (kPageTokens * slot_bytes(ranks()) + kUnitBytes) +
                 more_packed * packed_state_bytes(ranks());
  growth.state += scores_contents() ? all_heads() * std::max<int64_t>(0, scored_end - scored_) * score_bytes(ranks())
                                    : attention_growth(view, end, (next * n_heads() + packed_units() + more_packed) * kPageTokens);
  return growth;
}

int64_t SharedSlotStore::lasting_bytes() const { return packed_units() * packed_page_bytes(); }

int64_t SharedSlotStore::state_bytes() const {
  int64_t bytes = packed_units() * packed_state_bytes(ranks());
  for (const Layer& layer : layers_) {
    bytes += layer.kept.n_units() * kUnitBytes;
    for (const Head& head : layer.heads) {
      bytes += static_cast<int64_t>(head.positions.size() * sizeof(int32_t)) + head.kept.bytes() + head.tail.bytes() +
               static_cast<int64_t>(head.mass.size() * sizeof(float));
    }
  }
  return bytes;
}

void SharedSlotStore::save_scored(const Scored& scored, StateWriter* out) const {
  out->values(scored.score);
  out->values(scored.importance);
}

void SharedSlotStore::load_scored(size_t n, StateReader* in, Scored* scored) const {
  scored->score = in->values<float>();
  scored->importance = in->values<float>();
  in->expect(scored->score.size() == n && scored->importance.size() == (ranks() ? n : 0), "a score of each token");
  for (const std::vector<float>* values : {&scored->score, &scored->importance}) {
    in->expect(std::all_of(values->begin(), values->end(), [](float x) { return std::isfinite(x); }), "scores that compare");
  }
}

void SharedSlotStore::save(StateWriter* out) const {
  out->value(scored_);
  for (const Layer& layer : layers_) {
    layer.kept.save(out);
    for (const Head& head : layer.heads) {
      out->values(head.positions);
      save_scored(head.kept, out);
      save_scored(head.tail, out);
      out->values(head.mass);
      out->value(static_cast<int64_t>(head.packed.size()));
      for (const PackedUnit& unit : head.packed) {
        unit.page->save(out);
        out->values(unit.positions);
        save_scored(unit.tokens, out);
      }
    }
  }
}

void SharedSlotStore::load(const StageView& view, StateReader* in) {
  scored_ = in->value<int64_t>();
  in->expect(scores_contents() ? scored_ >= view.tail_first && scored_ <= view.tokens : scored_ == 0, "a count of scores");
  const auto scored = static_cast<size_t>(scored_ - view.tail_first);
  const auto left = [&](int32_t position) { return position >= 0 && position < view.tail_first; };
  for (Layer& layer : layers_) {
    layer.kept.load(budget_pages() - pages(), in);
    for (int64_t h = 0; h < n_heads(); ++h) {
      Head& head = layer.heads[static_cast<size_t>(h)];
      head.positions = in->values<int32_t>();
      in->expect(static_cast<int64_t>(head.positions.size()) == layer.kept.units(h) * kPageTokens &&
                     std::all_of(head.positions.begin(), head.positions.end(), left),
                 "the positions of kept tokens");
      load_scored(head.positions.size(), in, &head.kept);
      if (scores_contents()) {
        load_scored(scored, in, &head.tail);
        in->expect(in->values<float>().empty(), "no mass where contents are scored");
      } else {
        load_attention(view, in, &head);
      }
      load_packed(view, in, &head);
      const size_t kept = head.packed.size() * kPageTokens + head.positions.size();
      in->expect(head.mass.size() <= kept + static_cast<size_t>(view.tokens - view.tail_first), "mass of the tokens that there are");
    }
  }
  state_.set(state_bytes());
}

void SharedSlotStore::load_packed(const StageView& view, StateReader* in, Head* head) const {
  const auto n = in->value<int64_t>();
  in->expect(n >= 0 && n <= packed_most_ - packed_units(), "a count of packed units");
  for (int64_t i = 0; i < n; ++i) {
    PackedUnit unit;
    unit.page = std::make_shared<QuantizedPage>(context_->pool, nullptr, in, 1);
    in->expect(unit.page->layout() == *options_.eviction.packed, "a page of the policy's widths");
    unit.positions = in->values<int32_t>();
    in->expect(static_cast<int64_t>(unit.positions.size()) == kPageTokens &&
                   std::is_sorted(unit.positions.begin(), unit.positions.end()) && unit.positions.front() >= 0 &&
                   unit.positions.back() < view.tail_first,
               "the positions of packed tokens");
    load_scored(kPageTokens, in, &unit.tokens);
    head->packed.push_back(std::move(unit));
  }
}

void SharedSlotStore::add_stats(const StageView& view, CacheStats* stats) const {
  int64_t units = packed_units();
  stats->bytes += state_.bytes() + units * packed_page_bytes();
  if (view.may_share && packs()) stats->shared_bytes += shared_packed_units() * packed_page_bytes();
  for (const Layer& layer : layers_) {
    units += layer.kept.n_units();
    stats->bytes += layer.kept.bytes();
    if (view.may_share) stats->shared_bytes += layer.kept.shared_bytes();
  }
  stats->tokens_kept += units * kPageTokens / all_heads();
}

void SharedSlotStore::add_details(std::map<std::string, double>* details) const {
  size_t least = std::numeric_limits<size_t>::max(), most = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      const size_t n = head.positions.size() + head.packed.size() * kPageTokens;
      least = std::min(least, n);
      most = std::max(most, n);
    }
  }
  (*details)["head_tokens_least"] = static_cast<double>(least);
  (*details)["head_tokens_most"] = static_cast<double>(most);
  if (packs()) (*details)["packed_tokens"] = static_cast<double>(packed_units() * kPageTokens / all_heads());
}

}  // namespace smartkv
