#include "engine/speculation/adaptive.h"

#include <algorithm>
#include <utility>

namespace smartkv {
namespace {

// Most extra rows of each row class except the last, which is unbounded.
constexpr std::array<int64_t, 13> kRowClassEnds = {0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32};

// Largest probability of each range of ConfidenceEstimate.
constexpr std::array<double, 6> kRangeEnds = {0.3, 0.5, 0.7, 0.85, 0.95, 1};

// Reading the weights once costs a pass about as much as the arithmetic of this many rows (SmolLM2 on 2 cores).
constexpr double kWeightRows = 24;

// Factor by which a plan must beat plain decoding, as a margin for errors of the estimates.
constexpr double kMargin = 1.02;

// Measurements above this multiple of the expected cost are clipped to it.
constexpr double kOutlier = 1.5;

double expected_shape(int64_t sequences, int64_t extra_rows) {
  return 1 + static_cast<double>(extra_rows) / (kWeightRows + static_cast<double>(sequences));
}

double approach(double from, double to, double weight) { return from + weight * (to - from); }

// Returns the expected number of accepted tokens if each is accepted with probability `rate`, given those before it
// were.
double expected_accepted(double rate, int64_t drafted) {
  double sum = 0, product = 1;
  for (int64_t i = 0; i < drafted; ++i) sum += product *= rate;
  return sum;
}

// A number of tokens to draft for each option, with the expected tokens and milliseconds of one round.
struct Plan {
  std::vector<int64_t> drafted;            // by option
  int64_t rows = 0;                        // the sum of `drafted`
  double tokens = 0, step_ms = 0, ms = 0;  // step_ms: draft steps only; ms: draft steps and the target's pass
  double rate() const { return tokens / ms; }
};

// Finds the plan with the highest rate.
class Chooser {
 public:
  Chooser(int64_t sequences, const PassCost& target, std::span<const StepCost* const> groups,
          const std::vector<DraftOption>& options)
      : sequences_(sequences), target_(target), groups_(groups), options_(options) {}

  Plan choose() const {
    Plan plain;
    int64_t depth = 0;  // draft steps worth considering
    for (const DraftOption& option : options_) {
      plain.drafted.push_back(option.fixed ? option.cap : 0);
      if (option.group != DraftOption::kLookup) depth = std::max(depth, option.cap);
    }
    rate(&plain);
    Plan best = plain;
    const double needed = plain.rate() * kMargin;
    for (int64_t steps = 0; steps <= depth; ++steps) {
      Plan plan = with_steps(plain, steps);
      add_lookups(&plan);
      if (plan.rate() > std::max(best.rate(), needed)) best = std::move(plan);
    }
    return best;
  }

 private:
  double step_ms(size_t group, int64_t n, bool first = false) const {
    return first ? groups_[group]->first_ms(n, target_) : groups_[group]->next_ms(n, target_);
  }

  void rate(Plan* plan) const {
    plan->tokens = static_cast<double>(sequences_);
    plan->rows = 0;
    plan->step_ms = 0;
    for (size_t i = 0; i < options_.size(); ++i) {
      plan->tokens += expected_accepted(options_[i].acceptance, plan->drafted[i]);
      plan->rows += plan->drafted[i];
    }
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (int64_t step = 1;; ++step) {
        int64_t n = 0;
        for (size_t i = 0; i < options_.size(); ++i) {
          n += options_[i].group == static_cast<int32_t>(group) && plan->drafted[i] >= step ? 1 : 0;
        }
        if (n == 0) break;
        plan->step_ms += step_ms(group, n, step == 1);
      }
    }
    plan->ms = target_.ms(sequences_, plan->rows) + plan->step_ms;
  }

  // Returns `plain` with up to `steps` draft steps. A sequence takes part in a step if the chance of its token pays for
  // the sequence's own share of the cost.
  Plan with_steps(const Plan& plain, int64_t steps) const {
    Plan plan = plain;
    if (steps == 0) return plan;
    for (size_t group = 0; group < groups_.size(); ++group) {
      const auto joins = [&](const DraftOption& o) { return o.group == static_cast<int32_t>(group) && !o.fixed; };
      const auto n = static_cast<int64_t>(std::count_if(options_.begin(), options_.end(), joins));
      if (n == 0) continue;
      const double rows_ms = target_.ms(sequences_, n * steps) - target_.ms(sequences_, 0);
      const double share_ms =
          rows_ms / static_cast<double>(n * steps) + (step_ms(group, n) - step_ms(group, 1)) / static_cast<double>(n);
      const double price = plain.rate() * std::max(0.0, share_ms);
      for (size_t i = 0; i < options_.size(); ++i) {
        if (!joins(options_[i])) continue;
        double chance = options_[i].acceptance;
        while (plan.drafted[i] < std::min(steps, options_[i].cap) && chance > price) {
          ++plan.drafted[i];
          chance *= options_[i].acceptance;
        }
      }
    }
    rate(&plan);
    return plan;
  }

  // Adds looked-up tokens, likeliest first, up to the number that gives the best rate. They cost rows only. All numbers
  // are tried, because the first extra row may cost more than those after it.
  void add_lookups(Plan* plan) const {
    std::vector<double> chance(options_.size(), 0);  // probability that the option's next token is accepted
    for (size_t i = 0; i < options_.size(); ++i) {
      const bool open = options_[i].group == DraftOption::kLookup && !options_[i].fixed && options_[i].cap > 0;
      if (open) chance[i] = options_[i].acceptance;
    }
    Plan best = *plan;
    for (;;) {
      const auto next = static_cast<size_t>(std::max_element(chance.begin(), chance.end()) - chance.begin());
      if (next == chance.size() || chance[next] <= 0) break;
      plan->tokens += chance[next];
      plan->ms = target_.ms(sequences_, ++plan->rows) + plan->step_ms;
      chance[next] = ++plan->drafted[next] < options_[next].cap ? chance[next] * options_[next].acceptance : 0;
      if (plan->rate() > best.rate()) best = *plan;
    }
    *plan = std::move(best);
  }

  int64_t sequences_;
  const PassCost& target_;
  std::span<const StepCost* const> groups_;
  const std::vector<DraftOption>& options_;
};

}  // namespace

void TriedTokens::limit(double most_weight) {
  const double excess = tried / most_weight;
  if (excess <= 1) return;
  accepted /= excess;
  tried /= excess;
}

void AcceptanceEstimate::round(int64_t drafted, int64_t accepted) {
  tokens_.accepted = pace_.memory * tokens_.accepted + static_cast<double>(accepted);
  tokens_.tried = pace_.memory * tokens_.tried + static_cast<double>(std::min(accepted + 1, drafted));
  tokens_.limit(pace_.most_weight);
  if (!probing_) pause_ = kFirstPause;
  probing_ = false;
  skipped_ = 0;
}

bool AcceptanceEstimate::skip() {
  if (++skipped_ < pause_) return false;
  pause_ = std::min(2 * pause_, kLongestPause);
  probing_ = true;
  return true;
}

ConfidenceEstimate::ConfidenceEstimate() {
  double from = 0;
  for (size_t i = 0; i < kRanges; from = kRangeEnds[i++]) ranges_[i] = {(from + kRangeEnds[i]) / 2, kPriorWeight};
}

ConfidenceEstimate::ConfidenceEstimate(double prior) { ranges_.fill({prior, kPriorWeight}); }

size_t ConfidenceEstimate::range_of(double probability) {
  const auto at = std::lower_bound(kRangeEnds.begin(), kRangeEnds.end() - 1, probability);
  return static_cast<size_t>(at - kRangeEnds.begin());
}

void ConfidenceEstimate::round(std::span<const double> probabilities, int64_t accepted) {
  for (size_t i = 0; i < probabilities.size() && static_cast<int64_t>(i) <= accepted; ++i) {
    TriedTokens& range = ranges_[range_of(probabilities[i])];
    range.accepted += static_cast<int64_t>(i) < accepted ? 1 : 0;
    range.tried += 1;
    range.limit(kMostWeight);
  }
}

double StepCost::first_ms(int64_t n, const PassCost& target) const {
  return first.measured() ? first.ms(n, 0) : share * target.ms(n, 0);
}

double StepCost::next_ms(int64_t n, const PassCost& target) const {
  return next.measured() ? next.ms(n, 0) : first_ms(n, target);
}

size_t PassCost::sequence_class(int64_t sequences) {
  size_t result = 0;
  for (int64_t end = 1; end < sequences && result + 1 < kSequenceClasses; end *= 2) ++result;
  return result;
}

size_t PassCost::row_class(int64_t extra_rows) {
  return static_cast<size_t>(std::lower_bound(kRowClassEnds.begin(), kRowClassEnds.end(), extra_rows) -
                             kRowClassEnds.begin());
}

void PassCost::observe(int64_t sequences, int64_t extra_rows, double ms) {
  Level& level = levels_[sequence_class(sequences)];
  if (++level.passes <= 2) {
    level.ms = ms / shape(level, sequences, extra_rows);
    return;
  }
  if (extra_rows == 0) {
    level.ms = approach(level.ms, std::min(ms, 4 * level.ms), 0.1);
  } else {
    // Clip the measurement: a pass that other load held up says little about the shape.
    double& known = level.shape[row_class(extra_rows)];
    const double believed = shape(level, sequences, extra_rows);
    const double found = std::clamp(ms / level.ms, 1.0, kOutlier * believed);
    known = approach(known == 0 ? believed : known, found, 0.25);
    level.ms = approach(level.ms, std::min(ms / known, kOutlier * level.ms), 0.02);
  }
  // Let row classes that were measured as expensive decay slowly to the expected shape, so that they are tried again.
  for (size_t i = 1; i < kRowClasses; ++i) {
    double& known = level.shape[i];
    const double hoped = expected_shape(sequences, i < kRowClassEnds.size() ? kRowClassEnds[i] : kRowClassEnds.back());
    if (known > hoped && i != row_class(extra_rows)) known = approach(known, hoped, 0.0005);
  }
}

double PassCost::shape(const Level& level, int64_t sequences, int64_t extra_rows) const {
  const size_t at = row_class(extra_rows);
  size_t below = std::min(at, kRowClassEnds.size() - 1);
  while (below > 0 && level.shape[below] == 0) --below;
  double result = expected_shape(sequences, extra_rows);
  if (below > 0 && below == at) {
    result = level.shape[at];
  } else if (below > 0) {
    result *= level.shape[below] / expected_shape(sequences, kRowClassEnds[below]);
  }
  // Fewer rows never cost more than more rows.
  for (size_t above = at + 1; above < kRowClasses; ++above) {
    if (level.shape[above] > 0) result = std::min(result, level.shape[above]);
  }
  return result;
}

const PassCost::Level* PassCost::nearest(int64_t sequences, int64_t passes) const {
  const size_t at = sequence_class(sequences);
  for (size_t distance = 0; distance < kSequenceClasses; ++distance) {
    if (at + distance < kSequenceClasses && levels_[at + distance].passes >= passes) return &levels_[at + distance];
    if (at >= distance && levels_[at - distance].passes >= passes) return &levels_[at - distance];
  }
  return nullptr;
}

double PassCost::ms(int64_t sequences, int64_t extra_rows) const {
  const Level* level = nearest(sequences, 2);
  if (level == nullptr) level = nearest(sequences, 1);
  return (level != nullptr ? level->ms : 1) * shape(levels_[sequence_class(sequences)], sequences, extra_rows);
}

DraftPrice choose_drafts(int64_t sequences, const PassCost& target, std::span<const StepCost* const> groups,
                         std::vector<DraftOption>* options) {
  const Plan plan = Chooser(sequences, target, groups, *options).choose();
  for (size_t i = 0; i < options->size(); ++i) (*options)[i].chosen = plan.drafted[i];
  const int64_t rows = std::max<int64_t>(1, plan.rows);
  return {plan.rate(), (target.ms(sequences, rows) - target.ms(sequences, 0)) / static_cast<double>(rows)};
}

}  // namespace smartkv
