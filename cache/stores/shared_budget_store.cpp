#include "cache/stores/shared_budget_store.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using Token = EvictedTokens::Token;

}  // namespace

int64_t least_units(const EvictionOptions& options) {
  return whole_pages(std::max<int64_t>(options.sinks, 1)) / kPageTokens;
}

int64_t SharedBudgetOptions::dense_slots() const {
  const int64_t slots = eviction_slots(eviction);
  if (!eviction.packed) return slots;
  return std::min(slots, std::max(whole_pages(slots / 8), least_units(eviction) * kPageTokens));
}

std::unique_ptr<StoreFactory> make_slot_store(bool shared, const SharedBudgetOptions& options, TokenScorer scorer) {
  if (!shared) return std::make_unique<SlotStoreFactory>(options.eviction, std::move(scorer));
  if (!comparable(scorer)) {
    throw CacheError(
        "kv_cache.sizes: \"shared\" needs a scorer that compares tokens of all layers and KV heads, found \"" +
        std::string(name_of(scorer)) + '"');
  }
  return std::make_unique<SharedBudgetStoreFactory>(options, std::move(scorer));
}

SharedBudgetStore::SharedBudgetStore(const PolicyContext& context, const SharedBudgetOptions& options,
                                     TokenScorer scorer)
    : context_(context),
      options_(options),
      scorer_(std::move(scorer)),
      packed_most_(context.shape.n_layers * context.all_kv_heads() * options.packed_tokens() / kPageTokens),
      layers_(static_cast<size_t>(context.shape.n_layers), Layer(context)),
      sizes_(static_cast<size_t>(context.shape.n_layers * context.all_kv_heads())),
      state_(context.pool) {
  state_.set(state_bytes());
}

std::unique_ptr<TokenStore> SharedBudgetStore::fork() const {
  shares_ = shares_ || pages() + packed_units() > 0;
  return std::make_unique<SharedBudgetStore>(*this);
}

int64_t SharedBudgetStore::budget_pages() const { return shape().n_layers * options_.dense_slots() / kPageTokens; }

int64_t SharedBudgetStore::pages() const {
  int64_t pages = 0;
  for (const Layer& layer : layers_) pages += layer.kept.n_pages();
  return pages;
}

int64_t SharedBudgetStore::packed_units() const {
  size_t units = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) units += head.packed.size();
  }
  return static_cast<int64_t>(units);
}

int64_t SharedBudgetStore::shared_packed_units() const {
  int64_t units = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      units += std::count_if(head.packed.begin(), head.packed.end(),
                             [](const PackedUnit& u) { return u.page.use_count() > 1; });
    }
  }
  return units;
}

int64_t SharedBudgetStore::packed_page_bytes() const {
  return packs() ? quantized_bytes(shape(), *options_.eviction.packed) / n_heads() : 0;
}

int64_t SharedBudgetStore::entries(int64_t layer) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t whole = state.kept.whole_pages();
  int64_t units = whole + state.kept.n_units() - whole * n_heads();
  for (const Head& head : state.heads) units += static_cast<int64_t>(head.packed.size());
  return units * kPageTokens;
}

void SharedBudgetStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  for (int64_t h = 0; h < n_heads(); ++h) {
    for (const PackedUnit& unit : state.heads[static_cast<size_t>(h)].packed) {
      segments->push_back(unit.page->segment().of_head(0, h));
    }
  }
  state.kept.view(segments);
}

void SharedBudgetStore::positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const {
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

std::vector<int32_t> SharedBudgetStore::kept_positions(int64_t layer, int64_t head) const {
  const Head& of = layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)];
  std::vector<int32_t> positions = of.positions;
  for (const PackedUnit& unit : of.packed)
    positions.insert(positions.end(), unit.positions.begin(), unit.positions.end());
  return positions;
}

// Scores the prompt's tokens as they come, so that its end does not stall other sequences.
void SharedBudgetStore::see(const StageView& view) {
  if (!scores_contents()) return;
  score_contents(view, std::min(view.tokens, view.leaving()));
  state_.set(state_bytes());
}

void SharedBudgetStore::truncate(const StageView& view, int64_t n) {
  if (!scores_contents() || scored_ <= n) return;
  scored_ = n;
  const auto left = static_cast<size_t>(n - view.tail_first);
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) head.tail.resize(left);
    if (!by_importance()) continue;
    for (std::vector<float>& importance : layer.tail_importance) importance.resize(left);
  }
  state_.set(state_bytes());
}

bool SharedBudgetStore::by_importance() const { return options_.margin < 1 && knows_importance(scorer_); }

void SharedBudgetStore::score_contents(const StageView& view, int64_t end) {
  score_tail(context_, scorer_, view, &scored_, end, by_importance(), [&](int64_t layer, const TokenScores& run) {
    Layer& of = layers_[static_cast<size_t>(layer)];
    for (int64_t h = 0; h < n_heads(); ++h) {
      for (const float x : run.of_head(h)) of.heads[static_cast<size_t>(h)].tail.push_back(comparable(x));
    }
    if (!by_importance()) return;
    for (size_t h = 0; h < of.tail_importance.size(); ++h) {
      for (const float x : run.importance_of(static_cast<int64_t>(h))) of.tail_importance[h].push_back(comparable(x));
    }
  });
}

void SharedBudgetStore::prepare(const StageView& view) {
  if (scores_contents()) {
    score_contents(view, view.leaving());
  } else {
    score_attention(view);
  }
  if (by_importance()) share_importance(view.leaving() - view.tail_first);
  share_budget(view.tail_first, view.leaving() - view.tail_first);
}

// Makes packed units of the head's promoted tokens. They are in order of position, so tokens of a unit are neighbors.
void SharedBudgetStore::pack(Layer* layer, int64_t head, const EvictedTokens& leaving) const {
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
      unit.tokens.score.push_back(has_slot ? of.kept.score[at] : of.tail[at]);
      if (by_importance()) {
        unit.tokens.importance.push_back(has_slot ? of.kept.importance[at] : importance_of(*layer, head)[at]);
      }
    }
    unit.page = std::make_shared<QuantizedPage>(context_.pool, *options_.eviction.packed, nullptr,
                                                kernels::PageSource{places}, 1);
    of.packed.push_back(std::move(unit));
  }
}

void SharedBudgetStore::take(const StageView& view, int64_t layer, EvictedTokens* leaving) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  kernels::KvBackend& backend = *context_.pool->backend();
  std::vector<kernels::TokenMove> moves;
  std::vector<Changes> changes;
  std::vector<int64_t> units;
  const auto leave = [&](std::vector<float>* tail) {
    if (!tail->empty()) tail->erase(tail->begin(), tail->begin() + (view.leaving() - view.tail_first));
    tail->shrink_to_fit();
  };
  for (int64_t h = 0; h < n_heads(); ++h) {
    Head& head = state.heads[static_cast<size_t>(h)];
    pack(&state, h, *leaving);
    changes.push_back(choose(&head, leaving->of(h), importance_of(state, h)));
    leaving->leave(h, {});
    leave(&head.tail);
    std::vector<float>().swap(head.worth);
    std::vector<uint32_t>().swap(head.promoted);
    for (const auto& [from, to] : changes.back().moved) {
      moves.push_back({state.kept.place(h, from), state.kept.own_place(h, to)});
    }
    units.push_back(head.units_next);
  }
  for (std::vector<float>& importance : state.tail_importance) leave(&importance);
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

void SharedBudgetStore::finish(const StageView& /*view*/) {
  excess_ = rank() == 0 ? excess_bytes() : 0;
  state_.set(state_bytes());
}

int64_t SharedBudgetStore::stable_bytes() const { return packed_units() * packed_page_bytes(); }

int64_t SharedBudgetStore::state_bytes() const {
  int64_t bytes = static_cast<int64_t>(sizes_.size() * sizeof(HeadSize)) + excess_;
  bytes += packed_units() * packed_state_bytes();
  for (const Layer& layer : layers_) {
    bytes += layer.kept.n_units() * kUnitBytes;
    for (const Head& head : layer.heads) {
      bytes += static_cast<int64_t>(head.positions.size() * sizeof(int32_t)) + head.kept.bytes() +
               static_cast<int64_t>((head.tail.size() + head.mass.size()) * sizeof(float));
    }
    for (const std::vector<float>& importance : layer.tail_importance)
      bytes += static_cast<int64_t>(importance.size() * sizeof(float));
  }
  return bytes;
}

void SharedBudgetStore::load_scored(size_t n, StateReader* in, Scored* scored) const {
  in->fields(scored->score, scored->importance);
  in->expect(scored->score.size() == n && scored->importance.size() == (by_importance() ? n : 0),
             "a score for each token");
  for (const std::vector<float>* values : {&scored->score, &scored->importance}) {
    in->expect(std::all_of(values->begin(), values->end(), [](float x) { return std::isfinite(x); }), "finite scores");
  }
}

void SharedBudgetStore::save(StateWriter* out) const {
  out->value(scored_);
  for (const Layer& layer : layers_) {
    layer.kept.save(out);
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      const Head& head = layer.heads[h];
      out->fields(head.positions, head.kept.score, head.kept.importance, head.tail, layer.tail_importance[h], head.mass,
                  static_cast<int64_t>(head.packed.size()));
      for (const PackedUnit& unit : head.packed) {
        unit.page->save(out);
        out->fields(unit.positions, unit.tokens.score, unit.tokens.importance);
      }
    }
  }
}

void SharedBudgetStore::load(const StageView& view, StateReader* in) {
  in->expect(context_.ranks() == 1, "a cache with all KV heads");
  scored_ = in->value<int64_t>();
  in->expect(scores_contents() ? scored_ >= view.tail_first && scored_ <= view.tokens : scored_ == 0,
             "a count of scores");
  const auto scored = static_cast<size_t>(scored_ - view.tail_first);
  const auto left = [&](int32_t position) { return position >= 0 && position < view.tail_first; };
  for (int64_t l = 0; l < shape().n_layers; ++l) {
    Layer& layer = layers_[static_cast<size_t>(l)];
    layer.kept.load(budget_pages() - pages(), in);
    for (int64_t h = 0; h < n_heads(); ++h) {
      Head& head = layer.heads[static_cast<size_t>(h)];
      head.positions = in->values<int32_t>();
      in->expect(static_cast<int64_t>(head.positions.size()) == layer.kept.units(h) * kPageTokens &&
                     std::all_of(head.positions.begin(), head.positions.end(), left),
                 "the positions of kept tokens");
      load_scored(head.positions.size(), in, &head.kept);
      if (scores_contents()) {
        Scored tail;
        load_scored(scored, in, &tail);
        head.tail = std::move(tail.score);
        layer.tail_importance[static_cast<size_t>(h)] = std::move(tail.importance);
        in->expect(in->values<float>().empty(), "no attention mass for a scorer of contents");
      } else {
        load_attention(view, in, &head);
      }
      load_packed(view, in, &head);
      const size_t kept = head.packed.size() * kPageTokens + head.positions.size();
      in->expect(head.mass.size() <= kept + static_cast<size_t>(view.tokens - view.tail_first),
                 "at most one mass per token");
      size_of(l, h) = {static_cast<int32_t>(layer.kept.units(h)), static_cast<int32_t>(head.packed.size())};
    }
  }
  state_.set(state_bytes());
}

void SharedBudgetStore::load_packed(const StageView& view, StateReader* in, Head* head) const {
  const auto n = in->value<int64_t>();
  in->expect(n >= 0 && n <= packed_most_ - packed_units(), "a count of packed units");
  for (int64_t i = 0; i < n; ++i) {
    PackedUnit unit;
    unit.page = std::make_shared<QuantizedPage>(context_.pool, nullptr, in, 1);
    in->expect(unit.page->layout() == *options_.eviction.packed, "a page with the policy's widths");
    unit.positions = in->values<int32_t>();
    in->expect(static_cast<int64_t>(unit.positions.size()) == kPageTokens &&
                   std::is_sorted(unit.positions.begin(), unit.positions.end()) && unit.positions.front() >= 0 &&
                   unit.positions.back() < view.tail_first,
               "the positions of packed tokens");
    load_scored(kPageTokens, in, &unit.tokens);
    head->packed.push_back(std::move(unit));
  }
}

void SharedBudgetStore::add_stats(const StageView& view, CacheStats* stats) const {
  stats->bytes += state_.bytes() + packed_units() * packed_page_bytes();
  if (view.may_share && packs()) stats->shared_bytes += shared_packed_units() * packed_page_bytes();
  for (const Layer& layer : layers_) {
    stats->bytes += layer.kept.bytes();
    if (view.may_share) stats->shared_bytes += layer.kept.shared_bytes();
  }
  int64_t units = 0;
  for (const HeadSize& size : sizes_) units += size.dense + size.packed;
  stats->tokens_kept += units * kPageTokens / all_heads();
}

void SharedBudgetStore::add_details(std::map<std::string, double>* details) const {
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0, packed = 0;
  for (const HeadSize& size : sizes_) {
    const int64_t n = (size.dense + size.packed) * kPageTokens;
    least = std::min(least, n);
    most = std::max(most, n);
    packed += size.packed;
  }
  (*details)["head_tokens_least"] = static_cast<double>(least);
  (*details)["head_tokens_most"] = static_cast<double>(most);
  if (packs()) (*details)["packed_tokens"] = static_cast<double>(packed * kPageTokens / all_heads());
}

}  // namespace smartkv
