// Chooses how many tokens to draft: the number that yields the most tokens per millisecond, given the measured
// acceptance and the measured cost of passes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

// Counts how many of the recently drafted tokens were accepted. Counts are fractional because old tokens fade.
struct TriedTokens {
  double accepted = 0, tried = 0;

  TriedTokens() = default;
  TriedTokens(double prior, double weight) : accepted(prior * weight), tried(weight) {}
  double rate() const { return accepted / tried; }
  // Scales both counts down so that `tried` is at most `most_weight`. Older tokens then count for less.
  void limit(double most_weight);
};

// Estimates the probability that the next drafted token is accepted, given that all drafted tokens before it were. It
// is a moving average over the rounds of a sequence.
//
// It also decides when to probe a draft that does not pay. The pause between probes doubles until a round drafts
// because drafting pays.
class AcceptanceEstimate {
 public:
  struct Pace {
    double prior_weight, most_weight;  // weight of the prior, and of everything remembered, in tokens tried
    double memory;                     // factor on all earlier rounds when a round is added
  };
  AcceptanceEstimate(double prior, const Pace& pace) : pace_(pace), tokens_(prior, pace.prior_weight) {}

  double rate() const { return tokens_.rate(); }
  // Adds a round that drafted `drafted` tokens, the first `accepted` of which were accepted.
  void round(int64_t drafted, int64_t accepted);
  // Counts a round that could have drafted but did not because it would not pay. Returns true if the round should draft
  // a few tokens anyway, as a probe.
  bool skip();

 private:
  static constexpr int64_t kFirstPause = 16, kLongestPause = 512;

  Pace pace_;
  TriedTokens tokens_;
  int64_t skipped_ = 0, pause_ = kFirstPause;
  bool probing_ = false;
};

// Estimates how likely a drafted token is to be accepted, given the probability with which the model drafted it. It
// keeps one moving average over the tokens of a sequence for each range of probabilities. A small model's tokens are
// accepted about as often as its probabilities say. A model that drafts for itself is mostly accepted even where it is
// unsure.
class ConfidenceEstimate {
 public:
  ConfidenceEstimate();                       // starts from the model's own probabilities
  explicit ConfidenceEstimate(double prior);  // starts from one acceptance rate for every probability

  double rate(double probability) const { return ranges_[range_of(probability)].rate(); }
  // Adds a round that drafted tokens with these probabilities, the first `accepted` of which were accepted.
  void round(std::span<const double> probabilities, int64_t accepted);

 private:
  static constexpr size_t kRanges = 6;
  static constexpr double kPriorWeight = 2, kMostWeight = 30;  // in tokens tried
  static size_t range_of(double probability);

  std::array<TriedTokens, kRanges> ranges_;
};

// Recent cost of a decode pass in milliseconds, as a function of its sequences and of its extra rows, which are the
// rows beyond one per sequence.
//
// The level (the cost without extra rows) is separate from the shape (the factor that extra rows add), because the
// depth of the caches and other load on the machine change only the level. The first pass of a level runs with cold
// code and memory, so it counts only until the second one arrives.
class PassCost {
 public:
  void observe(int64_t sequences, int64_t extra_rows, double ms);
  // Returns the expected milliseconds. Before any observation the unit is one plain pass instead.
  double ms(int64_t sequences, int64_t extra_rows) const;
  bool measured() const { return nearest(1, 2) != nullptr; }

 private:
  static constexpr size_t kSequenceClasses = 8, kRowClasses = 14;
  struct Level {
    double ms = 0;  // cost of a pass without extra rows
    int64_t passes = 0;
    std::array<double, kRowClasses> shape{};  // factor on `ms` by row class; 0 if the class was never observed
  };
  static size_t sequence_class(int64_t sequences);
  static size_t row_class(int64_t extra_rows);
  double shape(const Level& level, int64_t sequences, int64_t extra_rows) const;
  // Returns the level nearest to `sequences` that has observed at least `passes` passes. Null if there is none.
  const Level* nearest(int64_t sequences, int64_t passes) const;

  std::array<Level, kSequenceClasses> levels_;
};

// Milliseconds of a draft step, which drafts one token for each of n sequences. The first step of a round costs more
// than the following ones: the processor's caches hold the target's weights, and there may be a token to catch up on.
struct StepCost {
  PassCost first, next;
  double share = 1;  // assumed cost of a step until it is measured, as a fraction of a plain pass of the target

  double first_ms(int64_t n, const PassCost& target) const;
  double next_ms(int64_t n, const PassCost& target) const;
};

// One sequence that could draft in the coming pass.
struct DraftOption {
  static constexpr int32_t kLookup = -1;

  double acceptance = 0;    // probability that a drafted token is accepted if the ones before it were
  int64_t cap = 0;          // most tokens to draft
  int32_t group = kLookup;  // index of the StepCost of its tokens; the sequences of a group share each step
  bool fixed = false;       // draft `cap` tokens regardless of cost
  int64_t chosen = 0;       // output: tokens to draft
};

// The price of a drafted token: it is worth drafting if its chance exceeds tokens_per_ms times the milliseconds it
// takes.
struct DraftPrice {
  double tokens_per_ms = 0;  // rate of the chosen plan: the tokens that a millisecond is worth
  double row_ms = 0;         // milliseconds that verifying one token adds to the target's pass
};

// Fills in `chosen` of every option and returns the price under that choice. `sequences` counts all sequences that
// decode in the pass, whether or not they can draft. `groups` is indexed by DraftOption::group.
DraftPrice choose_drafts(int64_t sequences, const PassCost& target, std::span<const StepCost* const> groups,
                         std::vector<DraftOption>* options);

}  // namespace smartkv
