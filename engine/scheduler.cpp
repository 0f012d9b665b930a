#include "engine/scheduler.h"

#include <algorithm>

namespace smartkv {

void Scheduler::fork(const ScheduledSequence* parent, ScheduledSequence* child) {
  const auto at = std::ranges::find(running_, parent, &Entry::sequence);
  --at->slots;
  --slots_;
  run({child, at->ticket, 1});
}

void Scheduler::remove(const ScheduledSequence* sequence) {
  if (const auto at = std::ranges::find(running_, sequence, &Entry::sequence); at != running_.end()) {
    slots_ -= at->slots;
    running_.erase(at);
  }
  std::erase_if(waiting_, [sequence](const Entry& entry) { return entry.sequence == sequence; });
}

void Scheduler::isolate(const ScheduledSequence* sequence, bool alone) {
  const auto runs = std::ranges::find(running_, sequence, &Entry::sequence);
  const auto waits = std::ranges::find(waiting_, sequence, &Entry::sequence);
  if (runs != running_.end()) runs->alone = alone;
  if (waits != waiting_.end()) waits->alone = alone;
}

void Scheduler::drop(ScheduledSequence* sequence, bool lost) {
  const auto at = std::ranges::find(running_, sequence, &Entry::sequence);
  if (at == running_.end()) return;
  Entry entry = *at;
  if (lost) ++entry.drops;
  wait(entry);  // first, because it may run out of memory; the sequence then keeps running
  slots_ -= entry.slots;
  running_.erase(at);
  sequence->drop();
}

void Scheduler::wait(Entry entry) {
  waiting_.insert(std::ranges::upper_bound(waiting_, entry.ticket, {}, &Entry::ticket), entry);
}

void Scheduler::run(Entry entry) {
  slots_ += entry.slots;
  running_.insert(std::ranges::upper_bound(running_, entry.ticket, {}, &Entry::ticket), entry);
}

int64_t Scheduler::bytes_held() const {
  int64_t bytes = 0;
  for (const Entry& entry : running_) bytes += entry.sequence->held();
  return bytes;
}

int64_t Scheduler::bytes_promised() const {
  int64_t bytes = 0;
  for (const Entry& entry : running_) bytes += std::max(entry.sequence->held(), entry.sequence->bytes_ahead(0));
  return bytes;
}

std::vector<ScheduledSequence*> Scheduler::running() const {
  std::vector<ScheduledSequence*> sequences;
  for (const Entry& entry : running_) sequences.push_back(entry.sequence);
  return sequences;
}

std::vector<ScheduledSequence*> Scheduler::candidates() const {
  std::vector<ScheduledSequence*> sequences;
  for (size_t i = 0; i < std::min(waiting_.size(), kLookAhead); ++i) sequences.push_back(waiting_[i].sequence);
  return sequences;
}

void Scheduler::plan(const Memory& memory, Plan* plan) {
  plan->items.clear();
  plan->preempted.clear();
  plan->admitted.clear();
  plan->failed.clear();
  plan->stuck = nullptr;
  planned_ = 0;
  exhausted_.clear();
  admit(memory, plan);
  share_work();
  take_memory(memory, plan);
  // Only a sequence that runs alone for a while can lack memory beside older ones. It waits, so that they continue.
  while (plan->items.empty() && running_.size() > 1) {
    ScheduledSequence* const suspect = running_.back().sequence;
    preempt(suspect, suspect->max_growth(1), memory, plan);
    share_work();
    take_memory(memory, plan);
  }
  if (plan->items.empty() && !running_.empty()) plan->stuck = running_.front().sequence;
}

int64_t Scheduler::cost(const ScheduledSequence& sequence, int64_t n) const {
  return n + n * (2 * sequence.computed() + n) / 2 / options_.attention_tokens;
}

int64_t Scheduler::affordable(const ScheduledSequence& sequence, int64_t work) const {
  int64_t low = 0, high = std::min({work, sequence.left(), sequence.pass_limit()});
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (cost(sequence, middle) <= work) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return std::max<int64_t>(0, low);
}

int64_t Scheduler::work() const {
  const auto decoding =
      std::count_if(running_.begin(), running_.end(), [](const Entry& e) { return e.sequence->left() == 1; });
  // At least 1, so that prompts advance however many sequences decode.
  return std::max<int64_t>(1, options_.token_budget - decoding);
}

void Scheduler::admit(const Memory& memory, Plan* plan) {
  running_growth_.clear();
  for (const bool known : {true, false}) {
    while (!isolated() && admit_one(known, memory, plan)) {  // nothing starts beside a sequence that runs alone
    }
  }
}

bool Scheduler::admit_one(bool known, const Memory& memory, Plan* plan) {
  if (slots_ >= options_.max_sequences) return false;  // early, before asking each waiting sequence
  std::vector<std::pair<int64_t, size_t>> order;       // most sharers first, then by age
  int64_t claimed = 0;                                 // bytes for sequences that wait for a running one
  for (size_t i = 0; i < std::min(waiting_.size(), kLookAhead); ++i) {
    ScheduledSequence* const sequence = waiting_[i].sequence;
    const ScheduledSequence::Known of = sequence->known();
    const bool hit = of.tokens > 0;
    if (hit || !known) {  // sequences with a hit go first, and set nothing aside for those without one
      if (const auto shared = memory.waits ? memory.waits(sequence) : std::nullopt) {
        claimed += std::max<int64_t>(0, sequence->bytes_ahead(options_.known_horizon) - *shared);
      } else if (hit == known) {
        order.emplace_back(-of.sharers, i);
      }
    }
    if (!may_be_overtaken(waiting_[i])) break;  // younger ones must not overtake it
  }
  std::sort(order.begin(), order.end());
  for (const auto& [sharers, i] : order) {
    const Entry& entry = waiting_[i];
    if (!wants_more(*entry.sequence)) return false;
    if (slots_ + entry.slots > options_.max_sequences || !fits_apart(entry, memory) ||
        !fits(entry, may_be_overtaken(entry) ? claimed : 0, memory))
      continue;
    begin(i, plan);
    return true;
  }
  return false;
}

void Scheduler::begin(size_t i, Plan* plan) {
  const Entry entry = waiting_[i];
  // In quarters of an overtake. Being overtaken by a prefix hit counts as one quarter.
  const int32_t overtakes = entry.sequence->known().tokens > 0 ? 1 : 4;
  // Reserve first, so that nothing below needs memory and no sequence is lost between the two lists.
  running_.reserve(running_.size() + 1);
  plan->admitted.reserve(plan->admitted.size() + 1);
  plan->failed.reserve(plan->failed.size() + 1);
  waiting_.erase(waiting_.begin() + static_cast<int64_t>(i));
  running_growth_.clear();
  exhausted_.clear();
  try {
    entry.sequence->begin();
  } catch (...) {
    plan->failed.emplace_back(entry.sequence, std::current_exception());
    return;
  }
  for (size_t passed = 0; passed < i; ++passed) waiting_[passed].overtakes += overtakes;
  run(entry);
  plan->admitted.push_back(entry.sequence);
}

bool Scheduler::isolated() const { return std::ranges::any_of(running_, &Entry::alone); }

bool Scheduler::wants_more(const ScheduledSequence& next) const {
  const ScheduledSequence* oldest = nullptr;
  int64_t backlog = 0, shorter = 0;
  for (const Entry& entry : running_) {
    const ScheduledSequence& sequence = *entry.sequence;
    if (sequence.left() == 1) continue;
    if (oldest == nullptr) oldest = &sequence;
    const int64_t all = cost(sequence, sequence.left());
    backlog += all;
    if (sequence.left() < oldest->left()) shorter += all;
  }
  return backlog < work() || (next.left() - next.known().tokens < oldest->left() && shorter < work() / 2);
}

bool Scheduler::fits_apart(const Entry& entry, const Memory& memory) const {
  int64_t bytes = entry.slots * entry.sequence->offloaded();
  if (bytes == 0) return true;
  for (const Entry& other : running_) bytes += other.slots * other.sequence->offloaded();
  return bytes <= memory.offload;
}

// Returns whether there is memory for this sequence and every running one to grow by this one's horizon. Evicts states
// of the prefix cache to get it.
bool Scheduler::fits(const Entry& entry, int64_t claimed, const Memory& memory) {
  if (running_.empty()) return true;      // a request that cannot run alone was refused
  constexpr int32_t kMostDoublings = 20;  // of the horizon, which is then a million times as long
  const ScheduledSequence::Known known = entry.sequence->known();
  const int64_t horizon = (known.tokens > 0 ? options_.known_horizon : options_.horizon)
                          << std::min(entry.drops, kMostDoublings);
  const auto rows = static_cast<int64_t>(running_.size()) + entry.slots;
  const int64_t bytes =
      claimed + entry.sequence->growth_ahead(horizon) + growth_of_running(horizon) + rows * options_.row_bytes;
  while (bytes > memory.free()) {
    if (reclaim(PrefixCache::Evict::kUnheld, memory)) continue;
    const bool waits = known.sharers == 0 && may_be_overtaken(entry);
    if (waits || !reclaim(PrefixCache::Evict::kUnused, memory)) return false;
  }
  return true;
}

int64_t Scheduler::growth_of_running(int64_t horizon) {
  const auto [known, is_new] = running_growth_.try_emplace(horizon, 0);
  if (is_new) {
    for (const Entry& entry : running_) known->second += entry.sequence->growth_ahead(horizon);
  }
  return known->second;
}

bool Scheduler::reclaim(PrefixCache::Evict which, const Memory& memory) {
  if (!memory.reclaim || exhausted_.contains(which)) return false;
  if (memory.reclaim(which)) return true;
  exhausted_.insert(which);
  return false;
}

void Scheduler::share_work() {
  std::vector<Entry*> prompts;
  const bool isolated = this->isolated();
  bool taken = false;  // whether the sequence that runs alone is found
  for (Entry& entry : running_) {
    entry.share = 0;
    if (isolated && (taken || !entry.alone)) continue;
    taken = true;
    if (entry.sequence->left() == 1) {
      entry.share = 1;
    } else {
      prompts.push_back(&entry);
    }
  }
  if (prompts.empty()) return;
  int64_t left = isolated ? options_.token_budget : work();
  Entry* const oldest = prompts[0];
  std::vector<Entry*> shorter(prompts.begin() + 1, prompts.end());
  std::erase_if(shorter, [&](const Entry* e) { return e->sequence->left() >= oldest->sequence->left(); });
  std::stable_sort(shorter.begin(), shorter.end(),
                   [](const Entry* a, const Entry* b) { return a->sequence->left() < b->sequence->left(); });
  int64_t used = 0;
  for (Entry* entry : shorter) {
    entry->share = affordable(*entry->sequence, left / 2 - used);
    used += cost(*entry->sequence, entry->share);
  }
  oldest->share = std::max<int64_t>(1, affordable(*oldest->sequence, used > 0 ? used : left));
  if (used > 0) return;
  left -= cost(*oldest->sequence, oldest->share);
  for (Entry* entry : prompts) {
    if (entry->share > 0 || left <= 0) continue;
    entry->share = affordable(*entry->sequence, left);
    left -= cost(*entry->sequence, entry->share);
  }
}

void Scheduler::take_memory(const Memory& memory, Plan* plan) {
  int64_t rows_left = options_.most_rows;
  for (size_t i = 0; i < running_.size(); ++i) {
    ScheduledSequence* const sequence = running_[i].sequence;
    int64_t n = running_[i].share;
    if (n == 0) continue;
    const auto rows_besides = [&](int64_t tokens) { return std::max<int64_t>(0, sequence->logit_rows(tokens) - 1); };
    while (n > 1 && rows_besides(n) > rows_left) --n;
    // A pass that reaches a sequence's last token needs a row of logits for each sequence that it will fork into.
    const auto needs = [&](int64_t tokens) {
      const int64_t slots = tokens == sequence->left() ? running_[i].slots : 0;
      return sequence->max_growth(tokens) + std::max(slots, sequence->logit_rows(tokens)) * options_.row_bytes;
    };
    while (!make_room(i, memory, plan, [&] { return needs(n); }) && n > 0) n /= 2;
    running_[i].deferred = n == 0 ? running_[i].deferred + 1 : 0;
    if (n == 0) continue;
    planned_ += needs(n);
    rows_left -= rows_besides(n);
    plan->items.push_back({sequence, n});
  }
}

template <typename Bytes>
bool Scheduler::make_room(size_t i, const Memory& memory, Plan* plan, const Bytes& bytes) {
  while (bytes() > memory.free() - planned_) {
    const bool youngest = running_.size() == i + 1;
    using Evict = PrefixCache::Evict;
    if (reclaim(Evict::kUnheld, memory)) continue;
    if (!plan->items.empty() && running_[i].deferred < options_.most_deferred) return false;
    if (reclaim(Evict::kUnused, memory)) continue;
    // A state that waiting sequences need is evicted only if this sequence is the only running one, which could not
    // continue otherwise. The youngest of several can wait until older ones end.
    if (running_.size() == 1 && reclaim(Evict::kAny, memory)) continue;
    if (youngest) return false;
    preempt(running_[i].sequence, bytes(), memory, plan);
  }
  return true;
}

void Scheduler::preempt(const ScheduledSequence* needed_by, int64_t needed, const Memory& memory, Plan* plan) {
  plan->preempted.push_back({running_.back().sequence, needed_by, needed, memory.free() - planned_});
  drop(running_.back().sequence);
  exhausted_.clear();  // states with which it ran may now be evicted
}

}  // namespace smartkv
