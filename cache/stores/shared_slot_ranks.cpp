// SharedBudgetStore on tensor-parallel ranks: what they tell each other, and how much each comes to hold.
#include "cache/stores/shared_budget_store.h"

namespace smartkv {

using kernels::kPageTokens;

// Each tensor-parallel rank knows only what K and V of its own heads add to the importance. Adds up the parts of all
// ranks.
void SharedBudgetStore::share_importance(int64_t n_leaving) {
  if (context_.ranks() == 1) return;
  std::vector<float> own;
  for (const Layer& layer : layers_) {
    for (const std::vector<float>& of : layer.tail_importance)
      own.insert(own.end(), of.begin(), of.begin() + n_leaving);
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

std::vector<SharedBudgetStore::Candidates> SharedBudgetStore::gather_candidates(
    int64_t tail_first, int64_t n_leaving, std::vector<std::vector<float>>* importance) const {
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
      const auto join = [&](std::vector<float> Scored::*of, const std::vector<float>& tail) {
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

int64_t SharedBudgetStore::excess_bytes() const {
  const auto held = [&](int64_t rank) {
    const RankSize of = rank_size(rank);
    const int64_t masses = n_probes() == 0 ? 0 : (of.dense + of.packed) * kPageTokens;
    return pages_bytes(of) + units_bytes(of) + masses * static_cast<int64_t>(sizeof(float));
  };
  int64_t most = 0;
  for (int64_t r = 0; r < context_.ranks(); ++r) most = std::max(most, held(r));
  return most - held(rank());
}

// The budgets are shared by all KV heads of the model, and any head may have most of them.
SharedBudgetStore::RankSize SharedBudgetStore::rank_size_at(int64_t rank, const StageView& view,
                                                            const Moment& then) const {
  RankSize size = rank_size(rank);
  const int64_t heads = context_.all_kv_heads(), budget = budget_pages();
  const int64_t added = (then.left - view.tail_first) / kPageTokens * shape().n_layers;  // Pages.
  if (added == 0) return size;
  size.made = packs() ? size.dense + added * size.heads : 0;
  if (then.last == view.next_boundary) {  // No more than dense slots lack; see share_budget().
    int64_t lacking = (added - budget) * heads + shape().n_layers * (heads - 1);
    for (const HeadSize& of : sizes_) lacking += of.dense;
    size.made = std::clamp<int64_t>(lacking, 0, size.made);
  }
  size.packed = std::min(size.packed + size.made, packed_most_);
  // In the worst case all units belong to this rank's heads, and the last page of each layer is not full.
  const int64_t partly = context_.ranks() == 1 ? 0 : shape().n_layers * (size.heads - 1);
  size.pages = std::min(size.pages + added, (budget * heads + partly) / size.heads);
  size.dense = std::min(size.pages * size.heads, budget * heads);
  return size;
}

int64_t SharedBudgetStore::tail_bytes(const RankSize& size, const StageView& view, const Moment& then) const {
  const int64_t scored = scored_tail(scorer_, view, then, scored_),
                importance = by_importance() ? context_.all_kv_heads() : 0;
  int64_t values = shape().n_layers * scored * (size.heads + importance);
  if (then.probes(n_probes()) > 0) {
    values += (size.dense + size.packed) * kPageTokens + shape().n_layers * size.heads * (then.tokens - then.left);
  }
  return values * static_cast<int64_t>(sizeof(float));
}

// Adds to what this rank holds the growth of the rank that may grow most.
StoreBytes SharedBudgetStore::bytes_at(const StageView& view, const Moment& then) const {
  const bool commits = then.left > view.tail_first;
  const Moment before = view.boundaries.before(then.last);
  StoreBytes most;
  int64_t take = 0;
  for (int64_t r = 0; r < context_.ranks(); ++r) {
    const RankSize held = rank_size(r), size = rank_size_at(r, view, then);
    int64_t shared = 0, shared_packed = 0;  // Bytes of dense pages, and packed units.
    if (commits && r == rank() && view.may_share) {
      shared_packed = shared_packed_units();
      for (const Layer& layer : layers_) shared += layer.kept.shared_bytes();
    } else if (commits && r != rank() && shares_) {  // It is not known here which pages of another rank are shared.
      shared_packed = held.packed;
      shared = held.pages * page_bytes(held);
    }
    // Dropped units make room for new ones, unless they are shared.
    const auto packed_since = [&](const RankSize& was) {
      return std::min(size.packed - was.packed + shared_packed, size.made);
    };
    const int64_t pages = (size.pages - held.pages) * page_bytes(held) + packed_since(held) * packed_page_bytes();
    int64_t tail = tail_bytes(size, view, then) - tail_bytes(held, view, view.now());
    if (n_probes() > 0 && context_.ranks() > 1) {  // excess_bytes() counts the masses of all units.
      tail += (size.dense + size.packed - held.dense - held.packed) * kPageTokens * static_cast<int64_t>(sizeof(float));
    }
    most.pages = std::max(most.pages, pages + shared);
    most.state = std::max(most.state, units_bytes(size) - units_bytes(held) + tail);
    if (!commits) continue;
    // Packed units take the places of as many dense ones, but those of a layer are freed in whole pages, and the ones
    // that it has had are still there while it is worked on.
    int64_t of_layer = 0;
    for (int64_t layer = 0; layer < shape().n_layers; ++layer) of_layer = std::max(of_layer, rank_size(r, layer).dense);
    of_layer += (before.left - view.tail_first) / kPageTokens * held.heads;
    const int64_t workers = std::min(shape().n_layers, context_.workers());
    const int64_t units =
        std::min(packed_since(rank_size_at(r, view, before)), shape().n_layers * (held.heads - 1) + workers * of_layer);
    most.prepared = std::max(most.prepared, units * packed_page_bytes() + shared);
    take = std::max(take, then.taken / kPageTokens * page_bytes(held));
  }
  most.pages += pages_bytes(rank_size(rank()));
  most.state += state_.bytes();
  // A layer may get pages before another one loses as many, unless there were none.
  most.take.assign(layers_.size(), take);
  if (then.left > then.taken) most.working = shape().n_layers * take;
  return most;
}

}  // namespace smartkv
