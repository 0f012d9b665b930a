// Continuous batching with elastic memory: which sequences the next model pass carries, how many tokens of each, and who
// makes room when memory runs out. Pure bookkeeping: what a sequence is, the engine knows. Not thread-safe.
//
// A sequence has known tokens (its prompt and what was sampled of it); a pass computes some of those that are not
// computed yet. One token left: it decodes. More: its prompt is being computed, or what it knew when it lost its memory.
//
// - Memory goes by age. A sequence takes what its next pass needs. Where that is not there it lets a few passes go by: what
//   older ones take at a boundary they give back in part. Then the youngest one is dropped, to be computed anew later. The
//   oldest therefore always goes on.
// - A waiting sequence starts when it and all that run could grow by a horizon of further tokens. The horizon doubles each
//   time the sequence is dropped, so that it does not come back only to be dropped again. It is longer for those that go on
//   from what is known: they hold little of their own, so room for most of an answer costs few of them.
// - One that fits may pass one that does not, but none is passed more than kMostPasses times, and one that lost its memory
//   never.
// - A prompt that begins like one that is being computed waits until it can go on from there; others pass it if there is
//   memory for both, since otherwise one text would drive the other out before it has served those that wait for it. Those that
//   can go on from what is known go first (as in SGLang, Zheng et al. 2024), so that questions about one text run side by
//   side and share it: what they save others wait less for, so to be passed by them counts a quarter. Of these, those go
//   first that share with most of the running ones; what is kept of other texts, with which nobody runs, makes room for them.
// - Prompts share a pass's work. The oldest goes first; those that are shorter than what it has left go before it, with at
//   most half of the work, and then the oldest does no more than they do together: a short prompt waits for no long one.
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

// What the scheduler asks of a sequence. Byte figures are upper bounds.
class ScheduledSequence {
 public:
  virtual ~ScheduledSequence() = default;
  virtual int64_t computed() const = 0;          // tokens that its cache holds
  virtual int64_t left() const = 0;              // known tokens that no pass has computed; at least 1
  virtual int64_t pass_limit() const = 0;        // tokens of the next pass at most; at least 1
  virtual int64_t growth(int64_t n) const = 0;   // by which memory rises, at any moment, in a pass of its next n tokens
  // Rows of logits that a pass of its next n tokens yields: scratch memory, which lasts as long as the pass.
  virtual int64_t logit_rows(int64_t n) const { return n == left() ? 1 : 0; }
  virtual int64_t held() const = 0;              // bytes that it holds now
  // Of memory apart from all others', which it has to itself while it runs; each of its slots takes as much.
  virtual int64_t offloaded() const { return 0; }
  // While it waits: what is known of it already, which it will share.
  struct Known {
    int64_t tokens = 0, bytes = 0;
    int64_t sharers = 0;  // sequences that run with it
  };
  virtual Known known() const = 0;
  // Bytes that it holds at any moment until it has computed what it knows and `beyond` tokens more.
  virtual int64_t bytes_ahead(int64_t beyond) const = 0;
  // By which memory will most likely have risen then: of what it shares, what it will write anew counts, the rest does not.
  virtual int64_t growth_ahead(int64_t beyond) const = 0;
  virtual void begin() = 0;                      // makes its caches; may throw
  virtual void drop() = 0;                       // frees them: nothing is computed any more
};

struct SchedulerOptions {
  int64_t max_sequences = 32;
  int64_t token_budget = 512;  // of one pass, in tokens without context: decoding sequences first, then prompts
  // Tokens of context whose attention costs as much as the products of one token.
  int64_t attention_tokens = INT64_MAX;
  int64_t row_bytes = 0;       // of the logits of one row
  int64_t most_rows = INT64_MAX;  // of logits in a pass, besides one for each sequence
  int64_t horizon = 64;        // tokens
  int32_t most_deferred = 4;   // passes in a row
  int64_t known_horizon = 256;  // of those that go on from what is known; measured: docs/notes/2026-11-serving.md, case c
};

class Scheduler {
 public:
  static constexpr int32_t kMostPasses = 16;
  // Admission considers so many waiting sequences, the oldest, so that a deep queue does not slow down those that run.
  static constexpr size_t kLookAhead = 128;

  // Memory as it is.
  struct Memory {
    std::function<int64_t()> free;            // bytes within the budget that nobody holds
    // Frees a little of what is kept for prompts to come. False: there is nothing of that kind.
    std::function<bool(PrefixCache::Evict)> reclaim;
    int64_t offload = 0;                      // bytes of that apart
    // Bytes that a waiting sequence will share with one that runs, which is computing what both need: it had better wait for
    // that. Null, or none: it need not wait.
    std::function<std::optional<int64_t>(ScheduledSequence*)> waits = {};
  };

  struct Item {
    ScheduledSequence* sequence = nullptr;
    int64_t n_tokens = 0;
  };

  struct Plan {
    std::vector<Item> items;                     // by age
    std::vector<ScheduledSequence*> dropped;     // lost their memory
    std::vector<ScheduledSequence*> admitted;
    std::vector<std::pair<ScheduledSequence*, std::exception_ptr>> failed;  // begin() threw it; not scheduled any more
    ScheduledSequence* stuck = nullptr;          // alone, and yet there is no memory for its next token
  };

  explicit Scheduler(const SchedulerOptions& options) : options_(options) {}

  const SchedulerOptions& options() const { return options_; }
  // `slots`: sequences that it will be once its prompt is computed; older ones have lower tickets.
  void enqueue(ScheduledSequence* sequence, uint64_t ticket, int64_t slots);
  void fork(const ScheduledSequence* parent, ScheduledSequence* child);  // `child` takes one of the parent's slots
  void remove(const ScheduledSequence* sequence);                        // unknown ones are ignored
  // Of the sequences of a pass that failed, nobody knows which one is at fault: each goes on alone until isolate(..., false).
  void isolate(const ScheduledSequence* sequence, bool alone);
  // Drops a running sequence, to be computed anew. One that lost its memory waits until there is more; without `lost` it goes on as soon
  // as any of its age.
  void drop(ScheduledSequence* sequence, bool lost = true);

  void plan(const Memory& memory, Plan* plan);

  int64_t n_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t n_running() const { return slots_; }  // sequences, reserved ones included
  std::vector<ScheduledSequence*> running() const;     // by age
  std::vector<ScheduledSequence*> candidates() const;  // the waiting sequences that the next admission considers, by age
  int64_t bytes_held() const;      // by those that run; pages that they share count more than once
  int64_t bytes_promised() const;  // what they will have come to hold when they have computed what they know

 private:
  struct Entry {
    ScheduledSequence* sequence;
    uint64_t ticket;
    int64_t slots;
    int32_t drops = 0;   // times it lost its memory
    int32_t passes = 0;  // quarters of times it was passed
    bool alone = false;
    int32_t deferred = 0;  // passes in a row that had no memory for it
    int64_t share = 0;   // tokens of the pass that is being planned
  };

  int64_t cost(const ScheduledSequence& sequence, int64_t n) const;           // of n tokens, in tokens without context
  int64_t affordable(const ScheduledSequence& sequence, int64_t work) const;  // tokens that so much work pays for
  int64_t work() const;                                                       // that decoding leaves to prompts
  void admit(const Memory& memory, Plan* plan);
  // One of those that wait, of whom something is known, or of the others. False: none can.
  bool admit_one(bool known, const Memory& memory, Plan* plan);
  void begin(size_t i, Plan* plan);                      // one that waits
  bool isolated() const;                                 // whether some that run go on alone
  static bool may_be_passed(const Entry& entry) { return entry.drops == 0 && entry.passes < 4 * kMostPasses; }
  bool wants_more(const ScheduledSequence& next) const;  // whether the pass has work left for another prompt
  bool fits_apart(const Entry& entry, const Memory& memory) const;  // what it offloads
  // claimed: bytes for those that wait for one that runs.
  bool fits(const Entry& entry, int64_t claimed, const Memory& memory);
  int64_t growth_of_running(int64_t horizon);  // all of it, remembered until one begins
  bool reclaim(PrefixCache::Evict which, const Memory& memory);  // not asked again in a plan once there was nothing
  void share_work();
  void take_memory(const Memory& memory, Plan* plan);
  // bytes(): what is needed, which falls as states that share pages go.
  template <typename Bytes>
  bool make_room(size_t i, const Bytes& bytes, const Memory& memory, Plan* plan);
  void wait(Entry entry);
  void run(Entry entry);

  SchedulerOptions options_;
  std::deque<Entry> waiting_;   // by ticket
  std::vector<Entry> running_;  // by ticket
  int64_t slots_ = 0;
  // Of the pass that is being planned:
  int64_t planned_ = 0;         // bytes that its items may take, logits included
  std::map<int64_t, int64_t> running_growth_;  // by horizon
  std::set<PrefixCache::Evict> exhausted_;     // kinds of states of which none is left
};

}  // namespace smartkv
