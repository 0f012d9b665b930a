// How many tokens to draft: from measured acceptance and measured cost, the number that gives the most tokens per time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace smartkv {

// Of the tokens tried lately, how many stood.
struct TriedTokens {
  double accepted = 0, tried = 0;

  TriedTokens() = default;
  TriedTokens(double prior, double weight) : accepted(prior * weight), tried(weight) {}
  double rate() const { return accepted / tried; }
  void limit(double most_weight);  // the older count for less, so that no more than so many are remembered
};

// How likely the next drafted token stands, given that those before it did: a moving average over a sequence's rounds.
// Also decides when a draft that does not pay is tried again: after a pause that doubles until one is drafted because
// it pays.
class AcceptanceEstimate {
 public:
  struct Pace {
    double prior_weight, most_weight;  // in tokens tried
    double memory;                     // kept per round
  };
  AcceptanceEstimate(double prior, const Pace& pace) : pace_(pace), tokens_(prior, pace.prior_weight) {}

  double rate() const { return tokens_.rate(); }
  void round(int64_t drafted, int64_t accepted);
  // A round that could have drafted but did not pay. True: draft a little all the same, to see.
  bool skip();

 private:
  static constexpr int64_t kFirstPause = 16, kLongestPause = 512;

  Pace pace_;
  TriedTokens tokens_;
  int64_t skipped_ = 0, pause_ = kFirstPause;
  bool probing_ = false;
};

// How likely a token stands that a model drafted with a given probability: a moving average over a sequence's tokens for
// each range of probabilities. A small model is right about as often as it thinks; one that drafts for itself is right
// where it is unsure, too.
class ConfidenceEstimate {
 public:
  ConfidenceEstimate();  // as often as the model thinks
  explicit ConfidenceEstimate(double prior);

  double rate(double probability) const { return ranges_[range_of(probability)].rate(); }
  // A round that drafted tokens of these probabilities, of which the first `accepted` stood.
  void round(std::span<const double> probabilities, int64_t accepted);

 private:
  static constexpr size_t kRanges = 6;
  static constexpr double kPriorWeight = 2, kMostWeight = 30;  // in tokens tried
  static size_t range_of(double probability);

  std::array<TriedTokens, kRanges> ranges_;
};

// Milliseconds of a decode pass by its sequences and by the rows beyond one per sequence, as measured lately. The depth
// of the caches and what else the machine does move the level; the shape, how much further rows add, is kept apart. The
// first pass of a level finds neither its code nor its memory in place: it counts only until there is another.
class PassCost {
 public:
  void observe(int64_t sequences, int64_t extra_rows, double ms);
  double ms(int64_t sequences, int64_t extra_rows) const;  // before any observation, in units of a plain pass
  bool measured() const { return nearest(1, 2) != nullptr; }

 private:
  static constexpr size_t kSequenceClasses = 8, kRowClasses = 14;
  struct Level {
    double ms = 0;                            // of a pass without extra rows
    int64_t passes = 0;
    std::array<double, kRowClasses> shape{};  // times ms; 0: never seen
  };
  static size_t sequence_class(int64_t sequences);
  static size_t row_class(int64_t extra_rows);
  double shape(const Level& level, int64_t sequences, int64_t extra_rows) const;
  const Level* nearest(int64_t sequences, int64_t passes) const;  // of at least so many passes; null: none

  std::array<Level, kSequenceClasses> levels_;
};

// Milliseconds of a draft step: one token of each of n sequences. The first step of a round finds the caches of the
// processor full of the target's weights, and may have a token to catch up on; those after it are cheaper.
struct StepCost {
  PassCost first, next;
  double share = 1;  // of a plain pass of the target; what a step is taken to cost until it is measured

  double first_ms(int64_t n, const PassCost& target) const;
  double next_ms(int64_t n, const PassCost& target) const;
};

// One sequence that could draft in the coming pass.
struct DraftOption {
  static constexpr int32_t kLookup = -1;

  double acceptance = 0;    // of each drafted token
  int64_t cap = 0;          // tokens at most
  int32_t group = kLookup;  // which StepCost its tokens cost; the sequences of a group share each step
  bool fixed = false;       // draft `cap` tokens whatever it costs
  int64_t chosen = 0;       // out: tokens to draft
};

// What a drafted token must bring.
struct DraftPrice {
  double tokens_per_ms = 0;  // of the choice that was made: what a millisecond is worth
  double row_ms = 0;         // that verifying a token takes
};

// Fills in `chosen`. sequences: all that decode in the pass.
DraftPrice choose_drafts(int64_t sequences, const PassCost& target, std::span<const StepCost* const> groups,
                         std::vector<DraftOption>* options);

}  // namespace smartkv
