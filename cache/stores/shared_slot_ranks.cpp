// SharedBudgetStore on tensor-parallel ranks: what they tell each other, and how much each comes to hold.
#include <algorithm>
#include <utility>

#include "cache/stores/shared_budget_store.h"

namespace smartkv {

using kernels::kPageTokens;

// Each tensor-parallel rank knows only what K and V of its own heads add to the importance. Adds up the parts of all
// ranks.
void SharedBudgetStore::share_importance(int64_t n_leaving) {
  if (context_.ranks() == 1) return;
  std::vector<float> own;
  for (const Layer& layer : layers_) {
    for (const std::vector<float>& of : layer.tail_importance) own.insert(own.end(), of.begin(), of.begin() + n_leaving);
  }
  const std::vector<std::vector<float>> told = context_.gather(std::move(own));
  size_t at = 0;
  for (Layer& layer : layers_) {
    for (std::vector<float>& of : layer.tail_importance) {
      for (int64_t i = 0; i < n_leaving; ++i, ++at) {
        float sum = 0;
        for (const std::vector<float>& of_rank : told) sum += of_rank.at(at);
        of[static_cast<size_t>(i)] = comparable(sum);
      }
    }
  }
}

std::vector<SharedBudgetStore::Candidates> SharedBudgetStore::gather_candidates(int64_t tail_first, int64_t n_leaving,
                                                                           std::vector<std::vector<float>>* importance) const {
  // For each KV head its scores, then its importance. Each list begins with the tokens of packed units.
  std::vector<float> own;
  std::vector<int32_t> own_sinks;
  const int64_t n_sinks = packs() ? options_.eviction.sinks : 0;
  const auto append = [&](const std::vector<float>& values, size_t n) {
    own.insert(own.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n));
  };
  for (const Layer& layer : layers_) {
    for (int64_t h = 0; h < n_heads(); ++h) {
      const Head& head = layer.heads[static_cast<size_t>(h)];
      const auto join = [&](std::vector<float> Scored::* of, const std::vector<float>& tail) {
        for (const PackedUnit& unit : head.packed) append(unit.tokens.*of, kPageTokens);
        append(head.kept.*of, head.positions.size());
        append(tail, static_cast<size_t>(n_leaving));
      };
      join(&Scored::score, head.tail);
      if (by_importance()) join(&Scored::importance, importance_of(layer, h));
      if (n_sinks == 0) continue;
      const size_t end = own_sinks.size() + static_cast<size_t>(n_sinks);
      for (uint32_t i = 0; i < head.positions.size() + static_cast<size_t>(n_leaving); ++i) {
        if (position_of(head, i, tail_first) < n_sinks) own_sinks.push_back(static_cast<int32_t>(i));
      }
      own_sinks.resize(end, -1);
    }
  }
  const std::vector<std::vector<float>> told = context_.gather(std::move(own));
  std::vector<std::vector<int32_t>> sinks(told.size());
  if (n_sinks > 0) sinks = context_.gather(std::move(own_sinks));
  const int64_t all = context_.all_kv_heads();
  std::vector<Candidates> candidates(sizes_.size());
  if (by_importance()) importance->resize(sizes_.size());
  for (int64_t rank = 0, first = 0; rank < context_.ranks(); ++rank) {
    auto at = told[static_cast<size_t>(rank)].begin();
    auto sink = sinks[static_cast<size_t>(rank)].begin();
    const auto end = told[static_cast<size_t>(rank)].end();
    const int64_t heads = rank_size(rank, 0).heads;
    for (int64_t i = 0; i < shape().n_layers * heads; ++i) {
      const auto g = static_cast<size_t>(i / heads * all + first + i % heads);
      Candidates& of = candidates[g];
      const std::ptrdiff_t n = (sizes_[g].packed + sizes_[g].dense) * kPageTokens + n_leaving;
      if (end - at < (by_importance() ? 2 : 1) * n) {
        throw CacheError("rank " + std::to_string(rank) + ": expected the worth of each token, found fewer values");
      }
      of.worth.assign(at, at + n);
      at += n;
      if (by_importance()) {
        (*importance)[g].assign(at, at + n);
        at += n;
      }
      for (int64_t s = 0; s < n_sinks; ++s, ++sink) {
        if (*sink >= 0) of.sinks.push_back(*sink);
      }
      of.packed.resize(static_cast<size_t>(sizes_[g].packed));
      of.goes.resize(of.packed.size());
      of.units = sizes_[g].dense + n_leaving / kPageTokens;
    }
    first += heads;
  }
  return candidates;
}

SharedBudgetStore::RankSize SharedBudgetStore::rank_size(int64_t rank, int64_t layer) const {
  RankSize size{context_.heads == nullptr ? n_heads() : context_.heads->of_rank(rank)};
  const int64_t first = layer * context_.all_kv_heads() + (context_.heads == nullptr ? 0 : context_.heads->first(rank));
  for (int64_t g = first; g < first + size.heads; ++g) {
    size.dense += sizes_[static_cast<size_t>(g)].dense;
    size.packed += sizes_[static_cast<size_t>(g)].packed;
  }
  size.pages = (size.dense + size.heads - 1) / size.heads;
  return size;
}

SharedBudgetStore::RankSize SharedBudgetStore::rank_size(int64_t rank) const {
  RankSize all;
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    const RankSize of = rank_size(rank, layer);
    all = {of.heads, all.pages + of.pages, all.dense + of.dense, all.packed + of.packed};
  }
  return all;
}

int64_t SharedBudgetStore::rank_bytes(int64_t rank) const {
  const RankSize of = rank_size(rank);
  const int64_t mass = n_probes() == 0 ? 0 : (of.dense + of.packed) * kPageTokens * static_cast<int64_t>(sizeof(float));
  return of.pages * of.heads * (context_.pool->page_bytes() / n_heads()) +
         of.dense * dense_state_bytes(by_importance()) +
         of.packed * (packed_page_bytes() + packed_state_bytes(by_importance())) + mass;
}

int64_t SharedBudgetStore::excess_bytes() const {
  int64_t most = 0;
  for (int64_t r = 0; r < context_.ranks(); ++r) most = std::max(most, rank_bytes(r));
  return most - rank_bytes(rank());
}

// Bounds the growth of the tensor-parallel rank that may grow most.
StoreGrowth SharedBudgetStore::growth(const StageView& view, int64_t end) const {
  StoreGrowth growth = rank_growth(rank(), view, end);
  for (int64_t r = 0; r < context_.ranks(); ++r) {
    if (r == rank()) continue;
    const StoreGrowth other = rank_growth(r, view, end);
    for (size_t layer = 0; layer < growth.take.size(); ++layer) growth.take[layer] = std::max(growth.take[layer], other.take[layer]);
    growth.take_most = std::max(growth.take_most, other.take_most);
    growth.later = std::max(growth.later, other.later);
    growth.state = std::max(growth.state, other.state);
  }
  return growth;
}

StoreGrowth SharedBudgetStore::rank_growth(int64_t of_rank, const StageView& view, int64_t end) const {
  StoreGrowth growth;
  const bool here = of_rank == rank();
  const RankSize held = rank_size(of_rank);
  const int64_t page = held.heads * (context_.pool->page_bytes() / n_heads()), packed_page = packed_page_bytes();
  const int64_t budget = rank_pages(context_, held.heads, budget_pages());
  // It is not known here which pages of another tensor-parallel rank are shared.
  const int64_t shared_packed = here ? (view.may_share ? shared_packed_units() : 0) : shares_ ? held.packed : 0;
  int64_t next = held.pages, more_packed = 0, units = 0;
  if (view.next_boundary <= end) {
    const int64_t added = leaving_pages(view);
    next = std::min(budget, held.pages + shape().n_layers * added);
    // Dropped units make room for new ones, unless they are shared. The dropped unit may be on another tensor-parallel
    // rank.
    const int64_t room = packed_most_ - held.packed;
    int64_t coming = room;
    if (context_.ranks() > 1) {
      coming = added * all_heads() - budget_pages() * context_.all_kv_heads() + shape().n_layers * (context_.all_kv_heads() - 1);
      for (const HeadSize& size : sizes_) coming += size.dense;
      coming = std::clamp<int64_t>(coming, 0, room);
    }
    more_packed = packs() ? coming + shared_packed : 0;
    int64_t dense_next = 0, packed_next = 0;
    for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
      const RankSize of = rank_size(of_rank, layer);
      const int64_t dense = here ? layers_[static_cast<size_t>(layer)].kept.growth(added) : (added + (shares_ ? of.pages : 0)) * page;
      const int64_t packed = std::min(more_packed, of.dense + added * held.heads);
      growth.take.push_back(dense + packed * packed_page);
      dense_next += dense;
      packed_next = std::min(more_packed, packed_next + packed);
    }
    growth.take_most = (held.pages == 0 ? next * page : dense_next) + packed_next * packed_page;
    if (view.boundaries.after(view.next_boundary) <= end) {
      if (packs()) more_packed = room + shared_packed;
      const int64_t most = std::min(budget, shape().n_layers * whole_pages(end) / kPageTokens);
      growth.later = std::max<int64_t>(0, most - next) * page + more_packed * packed_page;
      next = std::max(next, most);
    }
    units = next * held.heads - held.dense;
  }
  const int64_t prompt = view.boundaries.prompt_tokens;
  const int64_t scored_end = view.next_boundary <= end ? std::max(view.leaving(), std::min(end, prompt)) : std::min(end, prompt);
  growth.state = units * dense_state_bytes(by_importance()) + more_packed * packed_state_bytes(by_importance());
  if (scores_contents()) {
    growth.state += std::max<int64_t>(0, scored_end - scored_) * scored_bytes(context_, held.heads, by_importance());
  } else if (end > view.next_boundary - n_probes()) {
    const int64_t candidates = (next * held.heads + held.packed + more_packed) * kPageTokens;
    const int64_t most = attention_bytes(1, candidates, shape().n_layers * held.heads * (end - view.tail_first));
    growth.state += std::max<int64_t>(0, most - (here ? attention_held() : 0));
  }
  return growth;
}

}  // namespace smartkv
