// The parts of SharedBudgetStore for scorers of attention.
#include "cache/stores/shared_budget_store.h"

namespace smartkv {

using kernels::kPageTokens;

int64_t SharedBudgetStore::n_probes() const { return smartkv::n_probes(scorer_); }

void SharedBudgetStore::observe(const StageView& /*view*/, int64_t layer, const StoreProbe& probe) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t whole = state.kept.whole_pages() * kPageTokens;
  // First entries of the KV head's own packed units, and of its dense units beyond the whole pages, in the order of
  // view().
  int64_t unit = 0, slot = 0;
  for (const Head& head : state.heads) slot += static_cast<int64_t>(head.packed.size()) * kPageTokens;
  const int64_t shared = slot;
  slot += whole;
  const float* row = probe.mass;
  for (Head& head : state.heads) {
    const auto packed = static_cast<int64_t>(head.packed.size()) * kPageTokens,
               kept = static_cast<int64_t>(head.positions.size());
    head.mass.resize(static_cast<size_t>(packed + kept + probe.n_tail));
    float* mass = head.mass.data();
    const auto add = [&](int64_t from, int64_t n) {
      for (int64_t i = 0; i < n; ++i) *mass++ += row[from + i];
    };
    add(probe.entry + unit, packed);
    add(probe.entry + shared, whole);
    add(probe.entry + slot, kept - whole);
    add(probe.tail, probe.n_tail);
    unit += packed;
    slot += kept - whole;
    row += probe.stride;
  }
  state_.set(state_bytes());
}

void SharedBudgetStore::score_attention(const StageView& view) {
  const auto n_tail = static_cast<size_t>(view.tokens - view.tail_first);
  context_.for_each(held_heads(), [&](int64_t i) {
    Head& head = layers_[static_cast<size_t>(i / n_heads())].heads[static_cast<size_t>(i % n_heads())];
    head.tail.resize(n_tail);
    // Sort by position: evictions leave the slots in any order, and units lie between each other.
    struct Candidate {
      int32_t position;
      float* score;
      float mass;
    };
    std::vector<Candidate> candidates;
    const auto add = [&](int32_t position, float* score) { candidates.push_back({position, score, 0}); };
    for (PackedUnit& unit : head.packed) {
      for (size_t t = 0; t < unit.positions.size(); ++t) add(unit.positions[t], &unit.tokens.score[t]);
    }
    for (size_t t = 0; t < head.positions.size(); ++t) add(head.positions[t], &head.kept.score[t]);
    const auto kept = static_cast<std::ptrdiff_t>(candidates.size());
    for (size_t t = 0; t < n_tail; ++t)
      add(static_cast<int32_t>(view.tail_first + static_cast<int64_t>(t)), &head.tail[t]);
    head.mass.resize(candidates.size());
    for (size_t t = 0; t < candidates.size(); ++t) candidates[t].mass = head.mass[t];
    std::sort(candidates.begin(), candidates.begin() + kept,
              [](const Candidate& a, const Candidate& b) { return a.position < b.position; });
    std::vector<float> previous, mass;
    for (const Candidate& candidate : candidates) {
      previous.push_back(*candidate.score);
      mass.push_back(candidate.mass);
    }
    attention_scorer(scorer_)->score(previous, mass);
    for (size_t t = 0; t < candidates.size(); ++t) *candidates[t].score = mass[t];
    std::vector<float>().swap(head.mass);
  });
}

void SharedBudgetStore::load_attention(const StageView& view, StateReader* in, Head* head) const {
  const auto tail = static_cast<size_t>(view.tokens - view.tail_first);
  head->tail = in->values<float>();
  in->expect(head->tail.size() <= tail && in->values<float>().empty(), "scores of the tail");
  head->mass = in->values<float>();
  for (const std::vector<float>* values : {&head->tail, &head->mass}) {
    in->expect(std::all_of(values->begin(), values->end(), [](float x) { return std::isfinite(x); }), "finite scores");
  }
}

}  // namespace smartkv
