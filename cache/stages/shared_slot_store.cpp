#include "cache/stages/shared_slot_store.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "cache/stages/budget.h"
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

// Units that a KV head has at least: for the sinks, and so that none is left without a slot.
int64_t least_units(const EvictionOptions& options) { return whole_pages(std::max<int64_t>(options.sinks, 1)) / kPageTokens; }

}  // namespace

SharedSlotStoreFactory::SharedSlotStoreFactory(const SharedSlotOptions& options, std::unique_ptr<TokenScorer> scorer)
    : options_(options), scorer_(std::move(scorer)) {}

SharedSlotStoreFactory::~SharedSlotStoreFactory() = default;

std::unique_ptr<TokenStore> SharedSlotStoreFactory::create(const PolicyContext& context) const {
  return std::make_unique<SharedSlotStore>(context, options_, scorer_);
}

StoreFactory::Bytes SharedSlotStoreFactory::max_bytes(const PolicyContext& context, int64_t /*prompt_tokens*/,
                                                      int64_t n_tokens, int64_t n_left) const {
  const CacheShape& shape = context.shape;
  const int64_t page = dense_bytes(shape, kPageTokens) / shape.n_layers;
  const int64_t slots = std::min(eviction_slots(options_.eviction), n_left);
  // A layer that gets another page has it before its tail's page goes.
  Bytes bytes{dense_bytes(shape, slots) + std::min(shape.n_layers, context.workers()) * page, 0};
  bytes.layer_pages = std::min(dense_bytes(shape, slots), dense_bytes(shape, n_left) / shape.n_layers);
  const bool ranks = counts_importance(options_, *scorer_);
  const int64_t most_scored = std::max(n_left, std::min(n_tokens, kPageTokens));
  bytes.state = shape.n_layers * shape.n_kv_heads *
                (slots * slot_bytes(ranks) + slots / kPageTokens * kUnitBytes + most_scored * score_bytes(ranks));
  return bytes;
}

SharedSlotStore::SharedSlotStore(const PolicyContext& context, const SharedSlotOptions& options,
                                 std::shared_ptr<const TokenScorer> scorer)
    : context_(&context),
      options_(options),
      scorer_(std::move(scorer)),
      slots_(eviction_slots(options.eviction)),
      layers_(static_cast<size_t>(context.shape.n_layers), Layer(context)),
      state_(context.pool) {}

int64_t SharedSlotStore::budget_pages() const { return shape().n_layers * slots_ / kPageTokens; }

int64_t SharedSlotStore::pages() const {
  int64_t pages = 0;
  for (const Layer& layer : layers_) pages += layer.kept.n_pages();
  return pages;
}

int64_t SharedSlotStore::leaving_pages(const StageView& view) const {
  return (view.leaving() - view.tail_first) / kPageTokens;
}

// The first pages of which every KV head has its own unit at its own place: these are segments as they are.
int64_t SharedSlotStore::whole_pages_of(const Layer& layer, int64_t n_heads) {
  for (int64_t page = 0;; ++page) {
    for (int64_t h = 0; h < n_heads; ++h) {
      const std::vector<int32_t>& units = layer.heads[static_cast<size_t>(h)].units;
      if (static_cast<int64_t>(units.size()) <= page || units[static_cast<size_t>(page)] != page * n_heads + h) return page;
    }
  }
}

int64_t SharedSlotStore::entries(int64_t layer) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t whole = whole_pages_of(state, n_heads());
  int64_t units = whole;
  for (const Head& head : state.heads) units += static_cast<int64_t>(head.units.size()) - whole;
  return units * kPageTokens;
}

void SharedSlotStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t whole = whole_pages_of(state, n_heads());
  for (int64_t page = 0; page < whole; ++page) segments->push_back(state.kept.segment(page, kPageTokens));
  for (int64_t h = 0; h < n_heads(); ++h) {
    const std::vector<int32_t>& units = state.heads[static_cast<size_t>(h)].units;
    for (size_t i = static_cast<size_t>(whole); i < units.size(); ++i) {
      const int64_t page = units[i] / n_heads(), place = units[i] % n_heads();
      segments->push_back(state.kept.segment(page, kPageTokens).of_head(place, h));
    }
  }
}

void SharedSlotStore::represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t whole = whole_pages_of(state, n_heads()) * kPageTokens;
  const std::vector<int32_t>& own = state.heads[static_cast<size_t>(head)].positions;
  positions->insert(positions->end(), own.begin(), own.begin() + whole);
  for (int64_t h = 0; h < n_heads(); ++h) {
    const std::vector<int32_t>& its = state.heads[static_cast<size_t>(h)].positions;
    if (h == head) {
      positions->insert(positions->end(), its.begin() + whole, its.end());
    } else {
      positions->insert(positions->end(), its.size() - static_cast<size_t>(whole), SequenceCache::kOtherHead);
    }
  }
}

const std::vector<int32_t>& SharedSlotStore::slot_positions(int64_t layer, int64_t head) const {
  return layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(head)].positions;
}

// A prompt's tokens are scored as they come, so that its end stalls nobody.
void SharedSlotStore::see(const StageView& view) {
  score_contents(view, std::min(view.tokens, view.leaving()));
  state_.set(state_bytes());
}

void SharedSlotStore::truncate(const StageView& view, int64_t n) {
  if (scored_ <= n) return;
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
      for (const float x : values) to->push_back(std::isnan(x) ? std::numeric_limits<float>::lowest() : x);
    };
    add(run.scores, &tail.score);
    add(run.importance, &tail.importance);
  });
}

void SharedSlotStore::prepare(const StageView& view) {
  score_contents(view, view.leaving());
  share_budget(view.leaving() - view.tail_first);
}

void SharedSlotStore::weigh(int64_t n_leaving) {
  const auto join = [&](const std::vector<float>& kept, const std::vector<float>& tail, std::vector<float>* all) {
    all->insert(all->end(), kept.begin(), kept.end());
    all->insert(all->end(), tail.begin(), tail.begin() + n_leaving);
  };
  std::vector<float> scores;
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) {
      head.worth.clear();
      join(head.kept.score, head.tail.score, ranks() ? &scores : &head.worth);
    }
  }
  if (!ranks()) return;
  const std::vector<float> of_score = ranks_of(scores);
  auto score = of_score.begin();
  const auto margin = static_cast<float>(options_.margin);
  for (Layer& layer : layers_) {
    std::vector<float> importance;
    for (const Head& head : layer.heads) join(head.kept.importance, head.tail.importance, &importance);
    const std::vector<float> of_importance = ranks_of(importance);
    auto important = of_importance.begin();
    for (Head& head : layer.heads) {
      for (size_t n = head.kept.score.size() + static_cast<size_t>(n_leaving); n > 0; --n) {
        head.worth.push_back(std::max(*score++, *important++ - margin));
      }
    }
  }
}

void SharedSlotStore::share_budget(int64_t n_leaving) {
  const int64_t heads = n_heads(), added = n_leaving / kPageTokens, budget = budget_pages();
  int64_t all = 0;
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) {
      head.units_next = static_cast<int64_t>(head.units.size()) + added;
      all += head.units_next;
    }
  }
  if (all <= budget * heads) return;  // everybody keeps everything
  weigh(n_leaving);
  std::vector<float> worth;
  worth.reserve(static_cast<size_t>(all * kPageTokens));
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) worth.insert(worth.end(), head.worth.begin(), head.worth.end());
  }
  const auto last = worth.begin() + budget * heads * kPageTokens - 1;
  std::nth_element(worth.begin(), last, worth.end(), std::greater<>());
  const float threshold = *last;

  std::vector<double> wanted;  // units, by layer and head
  std::vector<double> layer_wanted;
  std::vector<int64_t> layer_least, layer_most;
  for (const Layer& layer : layers_) {
    double sum = 0;
    for (const Head& head : layer.heads) {
      const auto n = std::count_if(head.worth.begin(), head.worth.end(), [&](float w) { return w >= threshold; });
      wanted.push_back(static_cast<double>(n) / kPageTokens);
      sum += wanted.back();
    }
    layer_wanted.push_back(sum / static_cast<double>(heads));
    layer_least.push_back(least_units(options_.eviction));
    layer_most.push_back(layer.kept.n_pages() + added);
  }
  const std::vector<int64_t> pages = apportion(layer_wanted, layer_least, layer_most, budget);
  for (size_t l = 0; l < layers_.size(); ++l) {
    std::vector<Head>& of_layer = layers_[l].heads;
    const std::vector<int64_t> least(of_layer.size(), least_units(options_.eviction));
    std::vector<int64_t> most;
    for (const Head& head : of_layer) most.push_back(head.units_next);
    const std::vector<int64_t> units =
        apportion(std::span(wanted).subspan(l * of_layer.size(), of_layer.size()), least, most, pages[l] * heads);
    for (size_t h = 0; h < of_layer.size(); ++h) of_layer[h].units_next = units[h];
  }
}

// The head's best, as many as its next units hold: sinks first, then by what they are worth, of equals the later.
SharedSlotStore::Changes SharedSlotStore::choose(Head* head, std::span<const Token> tokens) const {
  const size_t held = head->positions.size(), room = static_cast<size_t>(head->units_next * kPageTokens);
  for (const Token& token : tokens) head->positions.push_back(token.position);
  const auto join = [&](std::vector<float>* kept, const std::vector<float>& tail) {
    if (!tail.empty()) kept->insert(kept->end(), tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(tokens.size()));
  };
  join(&head->kept.score, head->tail.score);
  join(&head->kept.importance, head->tail.importance);
  std::vector<size_t> order(head->positions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (room < order.size()) {
    const auto better = [&](size_t a, size_t b) {
      const bool sink_a = head->positions[a] < options_.eviction.sinks, sink_b = head->positions[b] < options_.eviction.sinks;
      if (sink_a != sink_b) return sink_a;
      return head->worth[a] != head->worth[b] ? head->worth[a] > head->worth[b] : head->positions[a] > head->positions[b];
    };
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(room), order.end(), better);
    order.resize(room);
  }
  std::vector<bool> stays(head->positions.size());
  for (const size_t i : order) stays[i] = true;
  // Who stays and lies within the slots that remain keeps its place; the others take the places that are free there.
  Changes changes;
  size_t free = 0;
  for (size_t i = 0; i < stays.size(); ++i) {
    if (!stays[i] || (i < held && i < room)) continue;
    while (free < held && stays[free]) ++free;
    const size_t to = free++;
    (i < held ? changes.moved : changes.taken)
        .emplace_back(i < held ? static_cast<int64_t>(i) : head->positions[i], static_cast<int64_t>(to));
    head->positions[to] = head->positions[i];
    head->kept.score[to] = head->kept.score[i];
    if (ranks()) head->kept.importance[to] = head->kept.importance[i];
  }
  head->positions.resize(room);
  head->kept.score.resize(room);
  if (ranks()) head->kept.importance.resize(room);
  return changes;
}

void SharedSlotStore::write_slot(Layer* layer, const Head& head, int64_t slot, const float* k, const float* v) const {
  const int64_t unit = head.units[static_cast<size_t>(slot / kPageTokens)];
  const int64_t position = unit / n_heads() * kPageTokens + slot % kPageTokens;
  layer->kept.own(position);
  layer->kept.store(position, unit % n_heads(), k, v);
}

void SharedSlotStore::copy_slot(Layer* layer, const Head& head, int64_t from, int64_t to) const {
  std::vector<float> k(static_cast<size_t>(shape().head_dim)), v(k.size());
  const int64_t unit = head.units[static_cast<size_t>(from / kPageTokens)];
  layer->kept.load(unit / n_heads() * kPageTokens + from % kPageTokens, unit % n_heads(), k.data(), v.data());
  write_slot(layer, head, to, k.data(), v.data());
}

void SharedSlotStore::resize(Layer* layer) const {
  const int64_t heads = n_heads(), before = layer->kept.n_pages();
  int64_t after = 0;
  for (const Head& head : layer->heads) after += head.units_next;
  after /= heads;
  std::vector<bool> used(static_cast<size_t>(std::max(before, after) * heads));
  for (Head& head : layer->heads) {
    head.units.resize(std::min(head.units.size(), static_cast<size_t>(head.units_next)));
    for (const int32_t unit : head.units) used[static_cast<size_t>(unit)] = true;
  }
  const auto take_free = [&](size_t preferred) {
    const size_t unit = preferred < used.size() && !used[preferred]
                            ? preferred
                            : static_cast<size_t>(std::find(used.begin(), used.end(), false) - used.begin());
    used[unit] = true;
    return static_cast<int32_t>(unit);
  };
  layer->kept.reserve(before * kPageTokens, after * kPageTokens);
  std::vector<float> k(static_cast<size_t>(shape().head_dim)), v(k.size());
  for (Head& head : layer->heads) {  // out of the pages that go
    for (int32_t& unit : head.units) {
      if (unit < after * heads) continue;
      const int32_t from = std::exchange(unit, take_free(used.size()));
      layer->kept.own(unit / heads * kPageTokens);
      for (int64_t i = 0; i < kPageTokens; ++i) {
        layer->kept.load(from / heads * kPageTokens + i, from % heads, k.data(), v.data());
        layer->kept.store(unit / heads * kPageTokens + i, unit % heads, k.data(), v.data());
      }
    }
  }
  layer->kept.truncate(after * kPageTokens);
  used.resize(static_cast<size_t>(after * heads));
  bool more = true;
  for (int64_t i = 0; more; ++i) {
    more = false;
    for (int64_t h = 0; h < heads; ++h) {
      Head& head = layer->heads[static_cast<size_t>(h)];
      more = more || i < head.units_next;
      if (static_cast<int64_t>(head.units.size()) == i && i < head.units_next) {
        head.units.push_back(take_free(static_cast<size_t>(i * heads + h)));
      }
    }
  }
}

void SharedSlotStore::take(const StageView& view, int64_t layer, LeavingTokens* leaving) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  std::vector<Changes> changes;
  for (int64_t h = 0; h < n_heads(); ++h) {
    Head& head = state.heads[static_cast<size_t>(h)];
    changes.push_back(choose(&head, leaving->of(h)));
    leaving->leave(h, {});
    for (std::vector<float>* tail : {&head.tail.score, &head.tail.importance}) {
      if (!tail->empty()) tail->erase(tail->begin(), tail->begin() + (view.leaving() - view.tail_first));
      tail->shrink_to_fit();
    }
    std::vector<float>().swap(head.worth);
    for (const auto& [from, to] : changes.back().moved) copy_slot(&state, head, from, to);
  }
  resize(&state);
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  std::vector<float> k(static_cast<size_t>(shape().head_dim)), v(k.size());
  for (int64_t h = 0; h < n_heads(); ++h) {
    for (const auto& [position, slot] : changes[static_cast<size_t>(h)].taken) {
      tail.load(position, h, k.data(), v.data());
      write_slot(&state, state.heads[static_cast<size_t>(h)], slot, k.data(), v.data());
    }
  }
}

void SharedSlotStore::finish(const StageView& /*view*/) { state_.set(state_bytes()); }

StoreGrowth SharedSlotStore::growth(const StageView& view, int64_t end) const {
  StoreGrowth growth;
  const int64_t page = context_->pool->page_bytes(), heads = shape().n_layers * n_heads();
  int64_t held = pages(), next = held;
  if (view.next_boundary <= end) {
    const int64_t added = leaving_pages(view);
    next = std::min(budget_pages(), held + shape().n_layers * added);
    for (const Layer& layer : layers_) growth.take.push_back(layer.kept.growth(0, (layer.kept.n_pages() + added) * kPageTokens));
    if (held == 0) growth.take_most = next * page;
    if (view.boundaries.after(view.next_boundary) <= end) {
      const int64_t most = std::min(budget_pages(), shape().n_layers * whole_pages(end) / kPageTokens);
      growth.later = std::max<int64_t>(0, most - next) * page;
      next = std::max(next, most);
    }
  }
  const int64_t prompt = view.boundaries.prompt_tokens;
  const int64_t scored_end = view.next_boundary <= end ? std::max(view.leaving(), std::min(end, prompt)) : std::min(end, prompt);
  growth.state = (next - held) * n_heads() * (kPageTokens * slot_bytes(ranks()) + kUnitBytes) +
                 heads * std::max<int64_t>(0, scored_end - scored_) * score_bytes(ranks());
  return growth;
}

int64_t SharedSlotStore::state_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      bytes += static_cast<int64_t>(head.positions.size() * sizeof(int32_t)) + head.kept.bytes() +
               static_cast<int64_t>(head.units.size()) * kUnitBytes + head.tail.bytes();
    }
  }
  return bytes;
}

void SharedSlotStore::save(StateWriter* out) const {
  out->value(scored_);
  for (const Layer& layer : layers_) {
    out->value(layer.kept.n_pages());
    layer.kept.save(layer.kept.n_pages() * kPageTokens, out);
    for (const Head& head : layer.heads) {
      out->values(head.units);
      out->values(head.positions);
      for (const Scored* scored : {&head.kept, &head.tail}) {
        out->values(scored->score);
        out->values(scored->importance);
      }
    }
  }
}

void SharedSlotStore::load(const StageView& view, StateReader* in) {
  scored_ = in->value<int64_t>();
  in->expect(scored_ >= view.tail_first && scored_ <= view.tokens, "a count of scores");
  const auto scored = static_cast<size_t>(scored_ - view.tail_first);
  const auto left = [&](int32_t position) { return position >= 0 && position < view.tail_first; };
  for (Layer& layer : layers_) {
    const auto n_pages = in->value<int64_t>();
    in->expect(n_pages >= 0 && n_pages <= budget_pages() - pages(), "a layer's pages");
    layer.kept.load(0, n_pages * kPageTokens, in);
    std::vector<bool> used(static_cast<size_t>(n_pages * n_heads()));
    for (Head& head : layer.heads) {
      head.units = in->values<int32_t>();
      head.positions = in->values<int32_t>();
      for (Scored* of : {&head.kept, &head.tail}) {
        of->score = in->values<float>();
        of->importance = in->values<float>();
        in->expect(of->importance.size() == (ranks() ? of->score.size() : 0), "an importance for each score");
        for (const std::vector<float>* values : {&of->score, &of->importance}) {
          in->expect(std::none_of(values->begin(), values->end(), [](float x) { return std::isnan(x); }), "scores that compare");
        }
      }
      for (const int32_t unit : head.units) {
        in->expect(unit >= 0 && unit < static_cast<int64_t>(used.size()) && !used[static_cast<size_t>(unit)], "a unit of its own");
        used[static_cast<size_t>(unit)] = true;
      }
      in->expect(head.positions.size() == head.units.size() * kPageTokens && head.kept.score.size() == head.positions.size() &&
                     std::all_of(head.positions.begin(), head.positions.end(), left),
                 "the positions and scores of kept tokens");
      in->expect(head.tail.score.size() == scored, "scores of the tail");
    }
    in->expect(std::find(used.begin(), used.end(), false) == used.end(), "no unit without a head");
  }
  state_.set(state_bytes());
}

void SharedSlotStore::add_stats(const StageView& view, CacheStats* stats) const {
  stats->tokens_kept += pages() * kPageTokens / shape().n_layers;
  stats->bytes += state_.bytes();
  for (const Layer& layer : layers_) {
    stats->bytes += layer.kept.bytes();
    if (view.may_share) stats->shared_bytes += layer.kept.shared_bytes();
  }
}

void SharedSlotStore::add_details(std::map<std::string, double>* details) const {
  size_t least = std::numeric_limits<size_t>::max(), most = 0;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      least = std::min(least, head.positions.size());
      most = std::max(most, head.positions.size());
    }
  }
  (*details)["head_tokens_least"] = static_cast<double>(least);
  (*details)["head_tokens_most"] = static_cast<double>(most);
}

}  // namespace smartkv
