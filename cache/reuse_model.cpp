#include "cache/reuse_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <new>
#include <utility>

namespace smartkv {
namespace {

constexpr int kPerOctave = 4;
// Weight of what is assumed before it is learned: one use in each octave of ages.
constexpr double kPriorUses = 1.0 / kPerOctave;

// The hazard before any use was seen: the older a state is, the longer it waits (Lindy's law, Pareto intervals). A
// state that a longer one replaces is assumed to be used in one of ten cases.
double prior_hazard(double age, bool replaced) { return (replaced ? 0.1 : 1) / (age + 1); }

// Returns the usual interval after one more: a moving average, so that one long pause does not change the class much.
int64_t usual(int64_t before, int64_t interval) { return before < 0 ? interval : (before + interval) / 2; }

}  // namespace

int ReuseModel::octave(int64_t ticks) {
  return std::min(kOctaves - 1,
                  static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, ticks)))) - 1);
}

int ReuseModel::bucket(int64_t age) {
  if (age < kPerOctave) return static_cast<int>(std::max<int64_t>(0, age));
  const int exponent = static_cast<int>(std::bit_width(static_cast<uint64_t>(age))) - 1;
  return std::min<int>(kBuckets - 1, kPerOctave * (exponent - 1) + static_cast<int>((age >> (exponent - 2)) & 3));
}

int64_t ReuseModel::first_age(int bucket) {
  if (bucket < kPerOctave) return bucket;
  return static_cast<int64_t>(kPerOctave + bucket % kPerOctave) << (bucket / kPerOctave - 1);
}

int ReuseModel::leaf(const Turn& turn, bool inner) {
  const int interval = turn.interval < 0 ? 0 : 1 + octave(turn.interval);
  return kLeaf + 2 * interval + (inner ? 1 : 0);
}

Reuse ReuseModel::begin(std::shared_ptr<Turn> turn, int64_t tokens) const {
  Reuse reuse;
  reuse.since = now_;
  reuse.kind = leaf(*turn, false);
  if (tokens == turn->diverges_at) {
    reuse.kind = kBranch + octave(turn->parted);
    reuse.interval = turn->parted;
    reuse.branch = turn->branch;
  }
  reuse.turn = std::move(turn);
  return reuse;
}

void ReuseModel::set_inner(Reuse* reuse) {
  settle(reuse);
  if (std::exchange(reuse->inner, true) || !is_leaf(reuse->kind)) return;
  change(reuse, leaf(*reuse->turn, true), reuse->since);
}

void ReuseModel::change(Reuse* reuse, int kind, int64_t since) {
  reuse->kind = kind;
  reuse->since = since;
  reuse->counted = 0;
}

void ReuseModel::settle(Reuse* reuse) {
  if (!is_leaf(reuse->kind) || reuse->turn->continued_at < 0) return;
  count_until(reuse, reuse->turn->continued_at - reuse->since);
  change(reuse, kSuperseded, std::max(reuse->since, reuse->turn->continued_at));
}

void ReuseModel::count_until(Reuse* reuse, int64_t age) {
  Branch* const branch = is_leaf(reuse->kind) ? reuse->turn->branch.get() : nullptr;
  Ages &ages = kinds_[static_cast<size_t>(reuse->kind)], &all = pool(reuse->kind);
  while (reuse->counted < age) {
    const int at = bucket(reuse->counted);
    const int64_t end = at + 1 < kBuckets ? std::min(age, first_age(at + 1)) : age;
    const auto ticks = static_cast<double>(end - reuse->counted);
    if (branch != nullptr && !reuse->inner) branch->expected += ticks * hazard(reuse->kind, at);
    ages[static_cast<size_t>(at)].ticks += ticks;
    all[static_cast<size_t>(at)].ticks += ticks;
    reuse->counted = end;
  }
}

void ReuseModel::count(Reuse* reuse) {
  settle(reuse);
  count_until(reuse, now_ - reuse->since);
}

void ReuseModel::add_use(const Reuse& reuse, double part) {
  const auto at = static_cast<size_t>(bucket(now_ - reuse.since));
  kinds_[static_cast<size_t>(reuse.kind)][at].uses += part;
  pool(reuse.kind)[at].uses += part;
  if (is_leaf(reuse.kind) && reuse.turn->branch != nullptr) reuse.turn->branch->continued += part;
}

std::shared_ptr<Turn> ReuseModel::use(Reuse* reuse) {
  count(reuse);
  add_use(*reuse, 1);
  const int64_t age = now_ - reuse->since;
  auto turn = std::make_shared<Turn>();
  if (is_leaf(reuse->kind)) {
    turn->interval = usual(reuse->turn->interval, age);
    reuse->turn->continued_at = now_;
    change(reuse, kSuperseded, now_);
    return turn;
  }
  if (reuse->branch == nullptr) reuse->branch = std::make_shared<Branch>();
  turn->branch = reuse->branch;
  reuse->interval = usual(reuse->interval, age);
  change(reuse, kBranch + octave(reuse->interval), now_);
  return turn;
}

std::shared_ptr<Turn> ReuseModel::diverge(Reuse* from, double part, int64_t diverges_at) {
  count(from);
  add_use(*from, part);
  auto turn = std::make_shared<Turn>();
  turn->branch = std::make_shared<Branch>();
  turn->diverges_at = diverges_at;
  turn->parted = now_ - from->since;
  return turn;
}

std::optional<Reuse> ReuseModel::awaited(const Reuse& evicted) {
  // Most first turns are never continued.
  if (!is_leaf(evicted.kind) || evicted.inner || !is_awaited(evicted) || evicted.turn->interval < 0) {
    return std::nullopt;
  }
  Reuse result = evicted;
  result.counted = INT64_MAX;
  return result;
}

double ReuseModel::hazard(int kind, int at) {
  const auto i = static_cast<size_t>(at);
  const Counts &all = pool(kind)[i], &own = kinds_[static_cast<size_t>(kind)][i];
  const double assumed = prior_hazard(static_cast<double>(first_age(at)), is_replaced(kind));
  const double pooled = (all.uses + kPriorUses) / (all.ticks + kPriorUses / assumed);
  return (own.uses + kPriorUses) / (own.ticks + kPriorUses / pooled);
}

double ReuseModel::index(int kind, int from, double factor) {
  double best = 0, alive = 1, uses = 0, ticks = 0;
  for (int at = from; at < kBuckets; ++at) {
    const auto width = static_cast<double>(first_age(at + 1) - first_age(at));
    const double left = alive * std::exp(-factor * hazard(kind, at) * width);
    uses += alive - left;
    ticks += (alive + left) / 2 * width;
    alive = left;
    best = std::max(best, uses / ticks);
    if (alive < 1e-3) break;  // the rest changes `best` by less than a thousandth
  }
  return best;
}

double ReuseModel::remembered_index(int kind, int from, double factor) {
  constexpr int kMost = 40;  // quarters of an octave: factors of a thousandth to a thousand
  const int step = static_cast<int>(std::clamp<double>(std::lround(kPerOctave * std::log2(factor)), -kMost, kMost));
  const auto compute = [&] { return index(kind, from, std::exp2(static_cast<double>(step) / kPerOctave)); };
  try {
    const auto [at, is_new] = indices_.try_emplace((kind * kBuckets + from) * (2 * kMost + 1) + step + kMost, 0);
    if (is_new) at->second = compute();
    return at->second;
  } catch (const std::bad_alloc&) {  // Evicting needs no memory.
    return compute();
  }
}

double ReuseModel::rate(Reuse* reuse) {
  count(reuse);
  const Branch* const branch = is_leaf(reuse->kind) ? reuse->turn->branch.get() : nullptr;
  return remembered_index(reuse->kind, bucket(now_ - reuse->since), branch == nullptr ? 1 : branch->factor());
}

}  // namespace smartkv
