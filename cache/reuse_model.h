// Learns from past uses how soon a stored state will be used again.
//
// Time is counted in ticks: requests that looked up a prefix. So evictions depend on the requests alone, not on how
// fast the machine is.
//
// Each state belongs to a class. For each class the model counts, by age (ticks since the last use), the uses and the
// ticks that states spent at that age. Their quotient is the hazard: uses per tick. The rate of a state is its Gittins
// index: the most uses per tick of keeping it that any plan can expect, where a plan keeps the state up to some age.
//  - If sessions take turns, hazards peak at the length of the cycle. A state that was just used then has the lowest
//    rate, so memory keeps the same sessions from cycle to cycle, as Belady's rule does.
//  - If requests are never continued, hazards fall to zero, and their states are evicted first.
//
// Classes tell apart
//  - a turn that no request has continued yet, by the interval between it and the turn that it continued,
//  - a state whose turn was continued, which the continuation supersedes,
//  - a state at which prompts diverge, by the interval between its last two uses.
//
// A request that continues no earlier one shares the history of others that began at the same state: the hazard of its
// states is multiplied by Branch::factor().
//
// Sources: hit densities of classes by age, LHD (Beckmann, Chen and Cidon 2018); the index of the best plan, Gittins
// (1979); the shrinkage of factors, gamma-Poisson (DuMouchel 1999).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace smartkv {

// The requests that began at one place: a state at which prompts diverge, or the beginning of all prompts.
struct Branch {
  double continued = 0;  // requests that a later one continued
  double expected = 0;   // how many of them the class's hazard foretold
  // The posterior mean of continued / expected for a prior of one each.
  double factor() const { return (continued + 1) / (expected + 1); }
};

// What a client or the operator says about the states of a request.
struct Retention {
  double weight = 1;                                                                           // multiplies their value
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();  // then the weight is 1

  double weight_at(std::chrono::steady_clock::time_point now) const { return now < until ? weight : 1; }
};

// A client whose states may take a limited number of bytes.
struct Owner {
  int64_t limit = 0;  // in bytes
  int64_t bytes = 0;  // of its states in memory
};

// A request whose states are stored. They stand for each other: a later request continues the turn from one of them.
struct Turn {
  int64_t interval = -1;           // usual ticks between the turns that it continues; -1 if there are none
  std::shared_ptr<Branch> branch;  // where it began; null if it continues a turn
  int64_t continued_at = -1;       // tick at which a request continued it; -1 before
  // Where the prompt diverges from stored ones, in tokens, if a state left there is one at which prompts diverge; 0 if
  // there is no such place. `parted` is the age of the state that it diverges from.
  int64_t diverges_at = 0, parted = 0;
  Retention retention;
  std::shared_ptr<Owner> owner;  // null if there is no limit
};

// The history of one state.
struct Reuse {
  std::shared_ptr<Turn> turn;
  std::shared_ptr<Branch> branch;  // of the requests that begin here; null if prompts do not diverge here
  bool inner = false;              // whether its turn has a longer state
  int32_t kind = 0;                // class
  int64_t interval = -1;           // usual ticks between uses, if prompts diverge here; -1 if unknown
  int64_t since = 0;               // tick from which its age counts
  int64_t counted = 0;             // age up to which the model has counted it
};

class ReuseModel {
 public:
  int64_t now() const { return now_; }
  void tick() {
    ++now_;
    indices_.clear();
  }

  // Returns the history of a state of `tokens` tokens that is stored now. REQUIRES: turn is not null.
  Reuse begin(std::shared_ptr<Turn> turn, int64_t tokens) const;
  // The longest state of the turn is now another one.
  void set_inner(Reuse* reuse);
  // Counts a use of the whole state, and returns the turn of the request that begins there.
  std::shared_ptr<Turn> use(Reuse* reuse);
  // Counts a use of the first part of a state, and returns the turn of the request, whose prompt diverges there.
  // - part: of the state's tokens, 0 to 1
  // - diverges_at: in tokens
  std::shared_ptr<Turn> diverge(Reuse* from, double part, int64_t diverges_at);
  // Returns the history of a state that is evicted, if a request is to continue its turn, and will resume from a
  // shorter state now. While it is_awaited(), its ages are not counted a second time.
  static std::optional<Reuse> awaited(const Reuse& evicted);
  // Returns whether a request is still to continue the turn.
  static bool is_awaited(const Reuse& reuse) { return reuse.turn->continued_at < 0; }
  // Counts the state's age up to now.
  void count(Reuse* reuse);
  // Returns the uses per tick that are to be expected of keeping the state.
  double rate(Reuse* reuse);

 private:
  // Ages in buckets of a quarter of an octave.
  static constexpr int kBuckets = 80;
  static constexpr int kOctaves = 20;
  static constexpr int kLeaf = 0, kSuperseded = 2 * (kOctaves + 1), kBranch = kSuperseded + 1;
  static constexpr int kKinds = kBranch + kOctaves;
  struct Counts {
    double uses = 0, ticks = 0;
  };
  using Ages = std::array<Counts, kBuckets>;

  static int octave(int64_t ticks);
  static int bucket(int64_t age);
  static int64_t first_age(int bucket);
  static int leaf(const Turn& turn, bool inner);
  static bool is_leaf(int kind) { return kind < kSuperseded; }
  // Gives the state its class once its turn is continued.
  void settle(Reuse* reuse);
  void count_until(Reuse* reuse, int64_t age);
  void add_use(const Reuse& reuse, double part);
  void change(Reuse* reuse, int kind, int64_t since);
  // Whether the class is of states that a longer one replaces unless a prompt diverges between the two.
  static bool is_replaced(int kind) { return kind == kSuperseded || (is_leaf(kind) && kind % 2 == 1); }
  Ages& pool(int kind) { return pools_[static_cast<size_t>(is_replaced(kind) ? 1 : is_leaf(kind) ? 0 : 2)]; }
  double hazard(int kind, int bucket);
  double index(int kind, int bucket, double factor);
  double remembered_index(int kind, int bucket, double factor);  // index() as of the first call in this tick

  int64_t now_ = 0;
  std::vector<Ages> kinds_ = std::vector<Ages>(kKinds);
  std::unordered_map<int, double> indices_;  // by kind, bucket and quarter of an octave of the factor
  std::array<Ages, 3> pools_;                // sums over the last states of turns, replaced states, and branches
};

}  // namespace smartkv
