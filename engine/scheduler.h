// Continuous batching with elastic memory.
//
// Before each model pass the scheduler decides which sequences take part, how many tokens of each are computed, and
// which sequence is preempted when memory runs out. It is pure bookkeeping over ScheduledSequence: it knows neither
// the model nor the caches. Not thread-safe; the engine thread owns it.
//
// A sequence has *known* tokens: its prompt and the tokens sampled so far. A pass computes known tokens that the cache
// does not hold yet. If one token is left, the sequence decodes. If more are left, it computes its prompt, or
// recomputes what it lost when it was preempted.
//
// Memory goes by age. If there is not enough for the next tokens of a sequence, the scheduler tries, in this order:
//  1. Evict states of the prefix cache that no sequence needs (PrefixCache::Evict::kUnheld).
//  2. Compute fewer tokens, or none in this pass (the sequence is *deferred*), because older sequences return memory at
//     compaction boundaries. The oldest sequence skips this step, as does one that was deferred `most_deferred` times
//     in a row.
//  3. Evict states of Evict::kUnused. A sequence that runs alone may evict any state.
//  4. Preempt the youngest running sequences. If this is the youngest one, it is deferred again.
// So the oldest sequence always makes progress.
//
// Admission looks ahead.
//  - A waiting sequence is admitted if it and every running sequence could each grow by `horizon` tokens, or if no
//    sequence runs.
//  - It also needs free slots and offload memory, and the running prompts must leave work for it in the pass.
//  - Each preemption doubles the horizon of that sequence, so that it is not admitted only to be preempted again.
//  - A sequence with a prefix hit uses the longer `known_horizon` instead. It shares most of its memory, so reserving
//    room for most of its answer costs little.
//
// Overtaking is bounded.
//  - A waiting sequence that fits may overtake one that does not fit. No sequence is overtaken more than kMostOvertakes
//    times, and a preempted sequence is never overtaken.
//  - Sequences with a prefix hit are admitted first (SGLang, Zheng et al. 2024), in descending order of the number of
//    running sequences that share the prefix. Being overtaken by one of them counts as a quarter, because the work that
//    a prefix hit saves shortens the wait of all.
//  - A sequence whose prefix a running sequence is computing waits for that prefix. Memory is set aside for it
//    meanwhile, so that the prefix is not evicted for a sequence that overtakes it. Sequences with a prefix hit may
//    take that memory if the waiting one has none yet, because they go first.
//  - Admission evicts states of Evict::kUnused only for a sequence whose prefix running sequences share, or that may
//    not be overtaken.
//
// Prompts share the work of a pass.
//  - The oldest prompt gets as much work as it can use. Younger ones get the rest, by age.
//  - A short prompt does not wait for a long one: prompts with fewer tokens left than the oldest go first, in order of
//    length. Together they get at most half of the work. The oldest then gets as much as they do, and all others none.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cache/prefix_cache.h"

namespace smartkv {

// A sequence as the scheduler sees it. Byte counts are upper bounds, except for known() and growth_ahead(), which are
// estimates. pass_limit(), max_growth(), logit_rows() and held() are called for running sequences only.
class ScheduledSequence {
 public:
  virtual ~ScheduledSequence() = default;
  virtual int64_t computed() const = 0;    // tokens that its cache holds
  virtual int64_t left() const = 0;        // known tokens that are not computed yet; at least 1
  virtual int64_t pass_limit() const = 0;  // most tokens that its next pass may compute; at least 1
  // Returns the most by which the bytes in use can rise, at any moment, in a pass over its next n tokens.
  virtual int64_t max_growth(int64_t n) const = 0;
  // Returns the rows of logits that a pass over its next n tokens yields. They are held during that pass only.
  virtual int64_t logit_rows(int64_t n) const { return n == left() ? 1 : 0; }
  virtual int64_t held() const = 0;  // bytes that it holds now
  // Returns the bytes of offload memory that each of its slots reserves while it runs. Offload memory is not shared.
  virtual int64_t offloaded() const { return 0; }
  // The prefix hit of a waiting sequence.
  struct Known {
    int64_t tokens = 0, bytes = 0;  // length of the prefix; bytes that the sequence will share
    int64_t sharers = 0;            // running sequences that use the prefix
  };
  virtual Known known() const = 0;
  // Returns the most bytes that it holds at any moment until its known tokens and `beyond` more are computed.
  virtual int64_t bytes_ahead(int64_t beyond) const = 0;
  // Returns the expected rise of the bytes in use until its known tokens and `beyond` more are computed. Includes
  // shared bytes that the sequence will probably replace by pages of its own.
  virtual int64_t growth_ahead(int64_t beyond) const = 0;
  virtual void begin() = 0;  // creates its caches; may throw
  virtual void drop() = 0;   // frees its caches, so that computed() is 0
};

struct SchedulerOptions {
  int64_t max_sequences = 32;
  // Work of one pass. The unit is the work of one token without context. Every decoding sequence takes part and counts
  // as 1. Prompts share the rest, at least 1.
  int64_t token_budget = 512;
  // Length of context whose attention costs as much as the matrix products of one token.
  int64_t attention_tokens = INT64_MAX;
  int64_t row_bytes = 0;          // bytes of one row of logits
  int64_t most_rows = INT64_MAX;  // limit for the rows of logits in a pass; the first of each sequence does not count
  int64_t horizon = 64;           // tokens
  int32_t most_deferred = 4;      // consecutive passes
  // Tokens, for sequences with a prefix hit. Measured in docs/notes/2026-11-serving.md, case c.
  int64_t known_horizon = 256;
};

class Scheduler {
 public:
  static constexpr int32_t kMostOvertakes = 16;
  // Admission considers only the oldest kLookAhead waiting sequences, so that a deep queue does not slow down the
  // running ones.
  static constexpr size_t kLookAhead = 128;

  // The state of memory, as the engine sees it.
  struct Memory {
    std::function<int64_t()> free;  // unused bytes of the budget
    // Evicts a state of the prefix cache, as PrefixCache::evict() does. May be null.
    std::function<bool(PrefixCache::Evict)> reclaim;
    int64_t offload = 0;  // bytes of offload memory in all
    // If a running sequence is computing a prefix of this waiting one, which should therefore wait, returns the bytes
    // that the two will share. Otherwise returns nullopt. May be null.
    std::function<std::optional<int64_t>(ScheduledSequence*)> waits = {};
  };

  // The next n_tokens of a sequence.
  struct Item {
    ScheduledSequence* sequence = nullptr;
    int64_t n_tokens = 0;
  };

  // A running sequence that lost its memory.
  struct Preemption {
    ScheduledSequence* sequence = nullptr;
    // The sequence whose next tokens need the memory. It is `sequence` itself if that was isolated (isolate()).
    const ScheduledSequence* needed_by = nullptr;
    int64_t needed = 0, free = 0;  // bytes that those tokens need, and bytes that were free
  };

  struct Plan {
    std::vector<Item> items;                                                // the pass, oldest sequence first
    std::vector<Preemption> preempted;                                      // drop() was called, and they wait again
    std::vector<ScheduledSequence*> admitted;                               // begin() was called, and they run
    std::vector<std::pair<ScheduledSequence*, std::exception_ptr>> failed;  // begin() threw; no longer scheduled
    ScheduledSequence* stuck = nullptr;  // runs alone and still lacks memory for its next token; null if there is none
  };

  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  const SchedulerOptions& options() const { return options_; }
  // Adds a waiting sequence. Lower tickets are older. `slots`: number of sequences that it forks into, itself included,
  // once its prompt is computed.
  void enqueue(ScheduledSequence* sequence, uint64_t ticket, int64_t slots) { wait({sequence, ticket, slots}); }
  // Adds `child` as a running sequence in one of the slots of `parent`. REQUIRES: `parent` is running and has a slot to
  // spare.
  void fork(const ScheduledSequence* parent, ScheduledSequence* child);
  void remove(const ScheduledSequence* sequence);  // does nothing if the sequence is unknown
  // Marks or unmarks a sequence that may be the cause of a failed pass. While marked sequences run, only the oldest of
  // them is computed, and no sequence is admitted.
  void isolate(const ScheduledSequence* sequence, bool alone);
  // Moves a running sequence back to the waiting ones and calls its drop(). If `lost`, this counts as a preemption: the
  // sequence's horizon doubles, and it may not be overtaken. Does nothing if the sequence does not run.
  void drop(ScheduledSequence* sequence, bool lost = true);

  // Plans the next pass: admits, preempts and evicts as described above. Overwrites *plan.
  void plan(const Memory& memory, Plan* plan);

  int64_t n_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t n_running() const { return slots_; }         // slots in use, including those reserved for forks
  std::vector<ScheduledSequence*> running() const;     // oldest first
  std::vector<ScheduledSequence*> candidates() const;  // waiting sequences that admission considers, oldest first
  int64_t bytes_held() const;  // sum over the running sequences; a shared page counts once for each of them
  // Returns the most bytes that the running sequences hold until their known tokens are computed.
  int64_t bytes_promised() const;

 private:
  struct Entry {
    ScheduledSequence* sequence;
    uint64_t ticket;
    int64_t slots;
    int32_t drops = 0;      // preemptions
    int32_t overtakes = 0;  // in quarters
    bool alone = false;
    int32_t deferred = 0;  // consecutive passes without memory for it
    int64_t share = 0;     // tokens in the pass that is being planned
  };

  // The work of computing n more tokens of a sequence, in tokens without context.
  int64_t cost(const ScheduledSequence& sequence, int64_t n) const;
  // Returns how many tokens of a sequence can be computed for so much work.
  int64_t affordable(const ScheduledSequence& sequence, int64_t work) const;
  int64_t work() const;  // left for prompts after decoding
  void admit(const Memory& memory, Plan* plan);
  // Admits one waiting sequence, with a prefix hit (`known`) or without. Returns false if none can be admitted.
  bool admit_one(bool known, const Memory& memory, Plan* plan);
  void begin(size_t i, Plan* plan);  // starts waiting_[i]
  bool isolated() const;             // whether a running sequence is marked `alone`
  static bool may_be_overtaken(const Entry& entry) { return entry.drops == 0 && entry.overtakes < 4 * kMostOvertakes; }
  bool wants_more(const ScheduledSequence& next) const;  // whether the running prompts leave work for this one
  bool fits_apart(const Entry& entry, const Memory& memory) const;  // whether its offload memory is free
  // Whether the running sequences and this one could all grow by its horizon. `claimed`: bytes set aside for sequences
  // that wait for a prefix.
  bool fits(const Entry& entry, int64_t claimed, const Memory& memory);
  int64_t growth_of_running(int64_t horizon);  // sum of growth_ahead(), cached until a sequence starts
  // Calls memory.reclaim, but not again in this plan for a kind of state that is exhausted.
  bool reclaim(PrefixCache::Evict which, const Memory& memory);
  void share_work();
  void take_memory(const Memory& memory, Plan* plan);
  // Preempts the youngest running sequence.
  void preempt(const ScheduledSequence* needed_by, int64_t needed, const Memory& memory, Plan* plan);
  // Makes bytes() available to running_[i]. bytes() is evaluated again after each eviction, since dropping a state can
  // turn shared pages into unshared ones. Returns false if the sequence has to be deferred.
  template <typename Bytes>
  bool make_room(size_t i, const Memory& memory, Plan* plan, const Bytes& bytes);
  void wait(Entry entry);
  void run(Entry entry);

  SchedulerOptions options_;
  std::deque<Entry> waiting_;   // by ticket
  std::vector<Entry> running_;  // by ticket
  int64_t slots_ = 0;
  // State of the plan in progress.
  int64_t planned_ = 0;                        // bytes reserved for its items, including logits
  std::map<int64_t, int64_t> running_growth_;  // growth_of_running(), by horizon
  std::set<PrefixCache::Evict> exhausted_;     // kinds of states of which none is left
};

}  // namespace smartkv
