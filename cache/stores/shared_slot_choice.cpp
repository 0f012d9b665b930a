// The choice of what a SharedBudgetStore keeps at a boundary.
#include <numeric>

#include "cache/stores/budget.h"
#include "cache/stores/shared_budget_store.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using Token = EvictedTokens::Token;

constexpr float kNothing = std::numeric_limits<float>::lowest();

// Returns the worth above the threshold, summed over the tokens that are worth more than it.
double excess(std::span<const float> worth, float threshold) {
  double sum = 0;
  for (const float w : worth) sum += std::max(0.0, static_cast<double>(w) - threshold);
  return sum;
}

// Returns the worth of all heads' candidates, one head after the other.
template <typename Heads>
std::vector<float> all_worth(const Heads& heads) {
  std::vector<float> all;
  for (const auto& head : heads) all.insert(all.end(), head.worth.begin(), head.worth.end());
  return all;
}

}  // namespace

std::vector<SharedBudgetStore::Candidates> SharedBudgetStore::weigh(int64_t tail_first, int64_t n_leaving) const {
  std::vector<std::vector<float>> importance;
  std::vector<Candidates> all = gather_candidates(tail_first, n_leaving, &importance);
  if (!by_importance()) return all;
  std::vector<float> scores;
  std::vector<size_t> first;  // By KV head: where its candidates begin.
  for (const Candidates& head : all) {
    first.push_back(scores.size());
    scores.insert(scores.end(), head.worth.begin(), head.worth.end());
  }
  const std::vector<float> of_score = ranks_of(scores);
  const auto margin = static_cast<float>(options_.margin);
  const auto heads = static_cast<size_t>(context_.all_kv_heads());
  context_.for_each(shape().n_layers, [&](int64_t layer) {
    const size_t from = static_cast<size_t>(layer) * heads;
    std::vector<float> of_layer;
    for (size_t h = from; h < from + heads; ++h)
      of_layer.insert(of_layer.end(), importance[h].begin(), importance[h].end());
    const std::vector<float> of_importance = ranks_of(of_layer);
    auto score = of_score.begin() + static_cast<std::ptrdiff_t>(first[from]);
    auto important = of_importance.begin();
    for (size_t h = from; h < from + heads; ++h) {
      for (float& worth : all[h].worth) worth = std::max(*score++, *important++ - margin);
    }
  });
  return all;
}

// Returns the worth above which tokens would be kept if they were kept one by one, not in units. Sets the price of each
// packed unit and removes the unit's tokens from `worth`.
float SharedBudgetStore::price_units(std::vector<Candidates>* all) const {
  std::vector<float> worth = all_worth(*all);
  const int64_t most = (packed_most_ + budget_pages() * context_.all_kv_heads()) * kPageTokens;
  float threshold = kNothing;
  if (most < static_cast<int64_t>(worth.size())) {
    std::nth_element(worth.begin(), worth.begin() + most, worth.end(), std::greater<>());
    threshold = worth[static_cast<size_t>(most)];
  }
  for (Candidates& head : *all) {
    std::span<const float> left(head.worth);
    for (double& unit : head.packed) {
      unit = excess(left.first(kPageTokens), threshold);
      left = left.subspan(kPageTokens);
    }
    head.worth.erase(head.worth.begin(),
                     head.worth.begin() + static_cast<std::ptrdiff_t>(head.packed.size()) * kPageTokens);
  }
  return threshold;
}

// Returns a head's dense candidates, the most valuable first. Sinks are left out, because they stay dense.
std::vector<uint32_t> SharedBudgetStore::promotable(const Candidates& head) const {
  std::vector<uint32_t> order(head.worth.size());
  std::iota(order.begin(), order.end(), uint32_t{0});
  std::erase_if(order, [&](uint32_t i) {
    return std::find(head.sinks.begin(), head.sinks.end(), static_cast<int32_t>(i)) != head.sinks.end();
  });
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return head.worth[a] != head.worth[b] ? head.worth[a] > head.worth[b] : a < b;
  });
  return order;
}

void SharedBudgetStore::promote(std::vector<Candidates>* all, int64_t wanted) const {
  const float threshold = price_units(all);
  std::vector<Candidates>& heads = *all;
  struct Unit {
    double worth;
    size_t head, i;
  };
  std::vector<Unit> units;
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t i = 0; i < heads[h].packed.size(); ++i) units.push_back({heads[h].packed[i], h, i});
  }
  context_.for_each(static_cast<int64_t>(heads.size()), [&](int64_t h) {
    Candidates& head = heads[static_cast<size_t>(h)];
    head.promoted = promotable(head);
  });
  std::vector<std::pair<double, size_t>> blocks;  // Worth above the threshold, and the head.
  for (size_t h = 0; h < heads.size(); ++h) {
    const int64_t most = heads[h].units - least_units(options_.eviction);
    std::vector<float> worth;
    for (const uint32_t i : heads[h].promoted) worth.push_back(heads[h].worth[i]);
    for (std::span<const float> left(worth); left.size() >= kPageTokens; left = left.subspan(kPageTokens)) {
      if (static_cast<int64_t>((worth.size() - left.size()) / kPageTokens) == most) break;
      blocks.emplace_back(excess(left.first(kPageTokens), threshold), h);
    }
  }
  // A head's blocks are in order of worth already, and stable sorts keep the order of equals.
  std::stable_sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::stable_sort(units.begin(), units.end(), [](const Unit& a, const Unit& b) { return a.worth < b.worth; });
  std::vector<float> dense = all_worth(heads);
  const auto kept = dense.begin() + budget_pages() * context_.all_kv_heads() * kPageTokens;
  std::nth_element(dense.begin(), kept, dense.end(), std::greater<>());
  std::sort(kept, dense.end(), std::greater<>());
  // A block that is packed saves as many other tokens from being lost, the best of them first. It gains their worth. It
  // costs the worth of the unit that makes room.
  std::span<const float> saved(kept, dense.end());
  int64_t room = packed_most_ - static_cast<int64_t>(units.size());
  std::vector<size_t> promoted(heads.size(), 0);
  auto least = units.begin();
  for (size_t b = 0; b < blocks.size() && static_cast<int64_t>(b) < wanted; ++b) {
    const size_t n = std::min<size_t>(kPageTokens, saved.size());
    if (room > 0) {
      --room;
    } else if (least != units.end() && least->worth < excess(saved.first(n), threshold)) {
      heads[least->head].goes[least->i] = true;
      ++least;
    } else {
      break;
    }
    saved = saved.subspan(n);
    ++promoted[blocks[b].second];
  }
  for (size_t h = 0; h < heads.size(); ++h) {
    heads[h].units -= static_cast<int64_t>(promoted[h]);
    heads[h].promoted.resize(promoted[h] * kPageTokens);
    for (const uint32_t i : heads[h].promoted) heads[h].worth[i] = kNothing;
  }
}

void SharedBudgetStore::share_budget(int64_t tail_first, int64_t n_leaving) {
  const int64_t heads = context_.all_kv_heads(), added = n_leaving / kPageTokens, budget = budget_pages();
  int64_t all = 0;
  for (const HeadSize& size : sizes_) all += size.dense + added;
  if (all <= budget * heads) {  // Everything fits.
    for (HeadSize& size : sizes_) size.dense += static_cast<int32_t>(added);
    for (Layer& layer : layers_) {
      for (int64_t h = 0; h < n_heads(); ++h)
        layer.heads[static_cast<size_t>(h)].units_next = layer.kept.units(h) + added;
    }
    return;
  }
  std::vector<Candidates> candidates = weigh(tail_first, n_leaving);
  // If heads do not fill a layer's last page, less of the budget is left for the others.
  if (packs()) promote(&candidates, all - budget * heads + shape().n_layers * (heads - 1));
  std::vector<float> worth = all_worth(candidates);
  const auto last = worth.begin() + budget * heads * kPageTokens - 1;
  std::nth_element(worth.begin(), last, worth.end(), std::greater<>());
  const float threshold = *last;
  // Candidates at the threshold, of which whole KV heads may be (a gate of heads), share the places that are left.
  const auto above = std::count_if(worth.begin(), last, [&](float w) { return w > threshold; });
  const auto equal = std::count(worth.begin(), worth.end(), threshold);
  const double share =
      threshold > kNothing ? static_cast<double>(last + 1 - worth.begin() - above) / static_cast<double>(equal) : 0;

  std::vector<double> wanted;  // Units, by layer and head.
  std::vector<double> layer_wanted;
  std::vector<int64_t> layer_least, layer_most;
  const std::span<Candidates> by_layer(candidates);
  const auto of_layer = [&](int64_t layer) {
    return by_layer.subspan(static_cast<size_t>(layer * heads), static_cast<size_t>(heads));
  };
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    double sum = 0;
    int64_t most = 0;
    for (const Candidates& head : of_layer(layer)) {
      double n = 0;
      for (const float w : head.worth) n += w > threshold ? 1 : w == threshold ? share : 0;
      wanted.push_back(n / kPageTokens);
      sum += wanted.back();
      most += head.units;
    }
    layer_wanted.push_back(sum / static_cast<double>(heads));
    layer_least.push_back(least_units(options_.eviction));
    layer_most.push_back((most + heads - 1) / heads);
  }
  const int64_t shared = std::min(budget, std::accumulate(layer_most.begin(), layer_most.end(), int64_t{0}));
  const std::vector<int64_t> pages = apportion(layer_wanted, layer_least, layer_most, shared);
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    const std::span<Candidates> of = of_layer(layer);
    const std::vector<int64_t> least(of.size(), least_units(options_.eviction));
    std::vector<int64_t> most;
    for (const Candidates& head : of) most.push_back(head.units);
    const int64_t total =
        std::min(pages[static_cast<size_t>(layer)] * heads, std::accumulate(most.begin(), most.end(), int64_t{0}));
    const std::vector<int64_t> units =
        apportion(std::span(wanted).subspan(static_cast<size_t>(layer * heads), of.size()), least, most, total);
    for (size_t h = 0; h < of.size(); ++h) of[h].units = units[h];
  }
  settle(&candidates, tail_first);
}

void SharedBudgetStore::settle(std::vector<Candidates>* all, int64_t tail_first) {
  for (size_t g = 0; g < all->size(); ++g) {
    const Candidates& of = (*all)[g];
    const auto gone = std::count(of.goes.begin(), of.goes.end(), true);
    sizes_[g].dense = static_cast<int32_t>(of.units);
    sizes_[g].packed += static_cast<int32_t>(static_cast<int64_t>(of.promoted.size()) / kPageTokens - gone);
  }
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    for (int64_t h = 0; h < n_heads(); ++h) {
      Candidates& of = (*all)[static_cast<size_t>(layer * context_.all_kv_heads() + context_.first_kv_head() + h)];
      Head& head = layers_[static_cast<size_t>(layer)].heads[static_cast<size_t>(h)];
      std::vector<PackedUnit> stay;
      for (size_t i = 0; i < head.packed.size(); ++i) {
        if (!of.goes[i]) stay.push_back(std::move(head.packed[i]));
      }
      head.packed = std::move(stay);
      head.units_next = of.units;
      head.worth = std::move(of.worth);
      head.promoted = std::move(of.promoted);
      std::sort(head.promoted.begin(), head.promoted.end(), [&](uint32_t a, uint32_t b) {
        return position_of(head, a, tail_first) < position_of(head, b, tail_first);
      });
    }
  }
}

// Fills the head's next units with its best candidates that are not packed: sinks first, then by worth; of equals, the
// later.
SharedBudgetStore::Changes SharedBudgetStore::choose(Head* head, std::span<const Token> tokens,
                                                     const std::vector<float>& importance) const {
  const size_t held = head->positions.size(), room = static_cast<size_t>(head->units_next * kPageTokens);
  for (const Token& token : tokens) head->positions.push_back(token.position);
  const auto join = [&](std::vector<float>* kept, const std::vector<float>& tail) {
    if (!tail.empty())
      kept->insert(kept->end(), tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(tokens.size()));
  };
  join(&head->kept.score, head->tail);
  join(&head->kept.importance, importance);
  std::vector<bool> stays(head->positions.size(), true);
  for (const uint32_t i : head->promoted) stays[i] = false;
  std::vector<size_t> order;
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i]) order.push_back(i);
  }
  if (room < order.size()) {
    const auto better = [&](size_t a, size_t b) {
      const bool sink_a = head->positions[a] < options_.eviction.sinks,
                 sink_b = head->positions[b] < options_.eviction.sinks;
      if (sink_a != sink_b) return sink_a;
      return head->worth[a] != head->worth[b] ? head->worth[a] > head->worth[b]
                                              : head->positions[a] > head->positions[b];
    };
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(room);
    std::nth_element(order.begin(), end, order.end(), better);
    std::for_each(end, order.end(), [&](size_t i) { stays[i] = false; });
  }
  // A token that stays and has a slot that stays keeps it. The others take the free slots.
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
    if (by_importance()) head->kept.importance[to] = head->kept.importance[i];
  }
  const auto cut = [&](auto* of) {
    of->resize(room);
    of->shrink_to_fit();
  };
  cut(&head->positions);
  cut(&head->kept.score);
  if (by_importance()) cut(&head->kept.importance);
  return changes;
}

}  // namespace smartkv
