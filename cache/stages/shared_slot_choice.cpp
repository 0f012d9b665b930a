// What a SharedSlotStore keeps at a boundary.
#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "cache/stages/budget.h"
#include "cache/stages/shared_slot_store.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using Token = LeavingTokens::Token;

constexpr float kNothing = std::numeric_limits<float>::lowest();

// By how much tokens are worth more than the threshold, those that are.
double excess(std::span<const float> worth, float threshold) {
  double sum = 0;
  for (const float w : worth) sum += std::max(0.0, static_cast<double>(w) - threshold);
  return sum;
}

}  // namespace

void SharedSlotStore::weigh(int64_t n_leaving) {
  // Of a head, its packed units first.
  const auto join = [&](const Head& head, std::vector<float> Scored::* of, std::vector<float>* all) {
    const auto append = [&](const std::vector<float>& values, std::ptrdiff_t n) {
      all->insert(all->end(), values.begin(), values.begin() + n);
    };
    for (const PackedUnit& unit : head.packed) append(unit.tokens.*of, kPageTokens);
    append(head.kept.*of, static_cast<std::ptrdiff_t>(head.positions.size()));
    append(head.tail.*of, n_leaving);
  };
  const auto candidates_of = [](const Head& head, int64_t leaving) {
    return head.packed.size() * kPageTokens + head.positions.size() + static_cast<size_t>(leaving);
  };
  std::vector<float> scores;
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) {
      head.worth.clear();
      join(head, &Scored::score, ranks() ? &scores : &head.worth);
    }
  }
  if (!ranks()) return;
  const std::vector<float> of_score = ranks_of(scores);
  std::vector<size_t> first;  // by layer
  for (size_t n = 0; const Layer& layer : layers_) {
    first.push_back(n);
    for (const Head& head : layer.heads) n += candidates_of(head, n_leaving);
  }
  const auto margin = static_cast<float>(options_.margin);
  context_->for_each(shape().n_layers, [&](int64_t l) {
    Layer& layer = layers_[static_cast<size_t>(l)];
    std::vector<float> importance;
    for (const Head& head : layer.heads) join(head, &Scored::importance, &importance);
    const std::vector<float> of_importance = ranks_of(importance);
    auto score = of_score.begin() + static_cast<std::ptrdiff_t>(first[static_cast<size_t>(l)]);
    auto important = of_importance.begin();
    for (Head& head : layer.heads) {
      const size_t n = candidates_of(head, n_leaving);
      while (head.worth.size() < n) head.worth.push_back(std::max(*score++, *important++ - margin));
    }
  });
}

std::vector<float> SharedSlotStore::all_worth() const {
  std::vector<float> all;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) all.insert(all.end(), head.worth.begin(), head.worth.end());
  }
  return all;
}

// What everybody must be worth to be kept, were there no units. Prices the packed units, whose tokens leave `worth`.
float SharedSlotStore::price_units() {
  std::vector<float> all = all_worth();
  const int64_t most = (packed_most_ + budget_pages() * n_heads()) * kPageTokens;
  float threshold = kNothing;
  if (most < static_cast<int64_t>(all.size())) {
    std::nth_element(all.begin(), all.begin() + most, all.end(), std::greater<>());
    threshold = all[static_cast<size_t>(most)];
  }
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) {
      const auto n_packed = static_cast<std::ptrdiff_t>(head.packed.size()) * kPageTokens;
      std::span<const float> worth(head.worth);
      for (PackedUnit& unit : head.packed) {
        unit.worth = excess(worth.first(kPageTokens), threshold);
        worth = worth.subspan(kPageTokens);
      }
      head.worth.erase(head.worth.begin(), head.worth.begin() + n_packed);
    }
  }
  return threshold;
}

// A head's dense candidates but for the sinks, which stay dense, the most valuable first.
std::vector<uint32_t> SharedSlotStore::promotable(const Head& head, int64_t tail_first) const {
  std::vector<uint32_t> order(head.worth.size());
  std::iota(order.begin(), order.end(), uint32_t{0});
  std::erase_if(order, [&](uint32_t i) { return position_of(head, i, tail_first) < options_.eviction.sinks; });
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return head.worth[a] != head.worth[b] ? head.worth[a] > head.worth[b] : a < b;
  });
  return order;
}

void SharedSlotStore::promote(int64_t tail_first, int64_t wanted) {
  const float threshold = price_units();
  std::vector<Head*> heads;
  std::vector<std::pair<double, PackedUnit*>> units;
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) {
      heads.push_back(&head);
      for (PackedUnit& unit : head.packed) units.emplace_back(unit.worth, &unit);
    }
  }
  std::vector<std::vector<uint32_t>> orders(heads.size());
  context_->for_each(static_cast<int64_t>(heads.size()), [&](int64_t h) {
    orders[static_cast<size_t>(h)] = promotable(*heads[static_cast<size_t>(h)], tail_first);
  });
  std::vector<std::pair<double, size_t>> blocks;  // and their heads
  for (size_t h = 0; h < heads.size(); ++h) {
    const int64_t most = heads[h]->units_next - least_units(options_.eviction);
    std::vector<float> worth;
    for (const uint32_t i : orders[h]) worth.push_back(heads[h]->worth[i]);
    for (std::span<const float> left(worth); left.size() >= kPageTokens; left = left.subspan(kPageTokens)) {
      if (static_cast<int64_t>((worth.size() - left.size()) / kPageTokens) == most) break;
      blocks.emplace_back(excess(left.first(kPageTokens), threshold), h);
    }
  }
  // A head's own blocks are in order: stable sorts keep equals so.
  std::stable_sort(blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::stable_sort(units.begin(), units.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<float> dense = all_worth();
  const auto kept = dense.begin() + budget_pages() * n_heads() * kPageTokens;
  std::nth_element(dense.begin(), kept, dense.end(), std::greater<>());
  std::sort(kept, dense.end(), std::greater<>());
  // A block that is packed keeps as many other tokens from being lost, the best of those that would be: their worth is what
  // it gains, and that of the unit that makes room what it costs.
  std::span<const float> saved(kept, dense.end());
  int64_t room = packed_most_ - static_cast<int64_t>(units.size());
  std::vector<size_t> promoted(heads.size(), 0);
  auto least = units.begin();
  for (size_t b = 0; b < blocks.size() && static_cast<int64_t>(b) < wanted; ++b) {
    const size_t n = std::min<size_t>(kPageTokens, saved.size());
    if (room > 0) {
      --room;
    } else if (least != units.end() && least->first < excess(saved.first(n), threshold)) {
      (least++)->second->page = nullptr;
    } else {
      break;
    }
    saved = saved.subspan(n);
    ++promoted[blocks[b].second];
  }
  for (size_t h = 0; h < heads.size(); ++h) {
    Head& head = *heads[h];
    std::erase_if(head.packed, [](const PackedUnit& unit) { return unit.page == nullptr; });
    head.units_next -= static_cast<int64_t>(promoted[h]);
    orders[h].resize(promoted[h] * kPageTokens);
    std::sort(orders[h].begin(), orders[h].end(), [&](uint32_t a, uint32_t b) {
      return position_of(head, a, tail_first) < position_of(head, b, tail_first);
    });
    for (const uint32_t i : orders[h]) head.worth[i] = kNothing;
    head.promoted = std::move(orders[h]);
  }
}

void SharedSlotStore::share_budget(int64_t tail_first, int64_t n_leaving) {
  const int64_t heads = n_heads(), added = n_leaving / kPageTokens, budget = budget_pages();
  int64_t all = 0;
  for (Layer& layer : layers_) {
    for (int64_t h = 0; h < heads; ++h) {
      int64_t& units = layer.heads[static_cast<size_t>(h)].units_next;
      units = layer.kept.units(h) + added;
      all += units;
    }
  }
  if (all <= budget * heads) return;  // everybody keeps everything
  weigh(n_leaving);
  // Where heads do not fill a layer's last page, the others must do with less.
  if (packs()) promote(tail_first, all - budget * heads + shape().n_layers * (heads - 1));
  std::vector<float> worth = all_worth();
  const auto last = worth.begin() + budget * heads * kPageTokens - 1;
  std::nth_element(worth.begin(), last, worth.end(), std::greater<>());
  const float threshold = *last;

  std::vector<double> wanted;  // units, by layer and head
  std::vector<double> layer_wanted;
  std::vector<int64_t> layer_least, layer_most;
  for (const Layer& layer : layers_) {
    double sum = 0;
    int64_t most = 0;
    for (const Head& head : layer.heads) {
      const auto n = std::count_if(head.worth.begin(), head.worth.end(), [&](float w) { return w >= threshold && w > kNothing; });
      wanted.push_back(static_cast<double>(n) / kPageTokens);
      sum += wanted.back();
      most += head.units_next;
    }
    layer_wanted.push_back(sum / static_cast<double>(heads));
    layer_least.push_back(least_units(options_.eviction));
    layer_most.push_back((most + heads - 1) / heads);
  }
  const int64_t shared = std::min(budget, std::accumulate(layer_most.begin(), layer_most.end(), int64_t{0}));
  const std::vector<int64_t> pages = apportion(layer_wanted, layer_least, layer_most, shared);
  for (size_t l = 0; l < layers_.size(); ++l) {
    std::vector<Head>& of_layer = layers_[l].heads;
    const std::vector<int64_t> least(of_layer.size(), least_units(options_.eviction));
    std::vector<int64_t> most;
    for (const Head& head : of_layer) most.push_back(head.units_next);
    const int64_t total = std::min(pages[l] * heads, std::accumulate(most.begin(), most.end(), int64_t{0}));
    const std::vector<int64_t> units = apportion(std::span(wanted).subspan(l * of_layer.size(), of_layer.size()), least, most, total);
    for (size_t h = 0; h < of_layer.size(); ++h) of_layer[h].units_next = units[h];
  }
}

// The head's best of those that are not packed, as many as its next units hold: sinks first, then by what they are worth, of
// equals the later.
SharedSlotStore::Changes SharedSlotStore::choose(Head* head, std::span<const Token> tokens) const {
  const size_t held = head->positions.size(), room = static_cast<size_t>(head->units_next * kPageTokens);
  for (const Token& token : tokens) head->positions.push_back(token.position);
  const auto join = [&](std::vector<float>* kept, const std::vector<float>& tail) {
    if (!tail.empty()) kept->insert(kept->end(), tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(tokens.size()));
  };
  join(&head->kept.score, head->tail.score);
  join(&head->kept.importance, head->tail.importance);
  std::vector<bool> stays(head->positions.size(), true);
  for (const uint32_t i : head->promoted) stays[i] = false;
  std::vector<size_t> order;
  for (size_t i = 0; i < stays.size(); ++i) {
    if (stays[i]) order.push_back(i);
  }
  if (room < order.size()) {
    const auto better = [&](size_t a, size_t b) {
      const bool sink_a = head->positions[a] < options_.eviction.sinks, sink_b = head->positions[b] < options_.eviction.sinks;
      if (sink_a != sink_b) return sink_a;
      return head->worth[a] != head->worth[b] ? head->worth[a] > head->worth[b] : head->positions[a] > head->positions[b];
    };
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(room);
    std::nth_element(order.begin(), end, order.end(), better);
    std::for_each(end, order.end(), [&](size_t i) { stays[i] = false; });
  }
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
  const auto cut = [&](auto* of) {
    of->resize(room);
    of->shrink_to_fit();
  };
  cut(&head->positions);
  cut(&head->kept.score);
  if (ranks()) cut(&head->kept.importance);
  return changes;
}

}  // namespace smartkv
