#include "cache/policies/block_summary/summary_options.h"

#include <cmath>

#include "cache/quantized_page.h"

namespace smartkv {
namespace {

template <typename Enum, size_t n>
Enum choice(Parameters* parameters, const std::string& key, Enum fallback, const std::string_view (&names)[n],
            std::string_view help) {
  const std::vector<std::string> choices(std::begin(names), std::end(names));
  const std::string name = parameters->choice(key, choices[static_cast<size_t>(fallback)], choices, help);
  return static_cast<Enum>(std::find(choices.begin(), choices.end(), name) - choices.begin());
}

}  // namespace

int64_t SummaryOptions::salient_at(double entropy) const {
  return salient + std::llround(static_cast<double>(salient_most - salient) * std::clamp(entropy, 0.0, 1.0));
}

int64_t most_summary_entries(const SummaryOptions& options, int64_t tokens) {
  // Follows the entries that ever enter the finest level, and from there each level. A level is made when the previous
  // one is full.
  const int64_t made = options.group() / options.ratio;
  int64_t entering = tokens / options.block * (options.summaries + options.salient_most), levels = 0;
  for (; entering > 0; ++levels) {
    const bool full = entering > options.level;
    entering = full ? (entering / options.group() + 1) * made : 0;
    if (full && entering <= made) entering = 0, ++levels;
  }
  int64_t most = options.sinks + options.outliers + options.block + levels * options.level;
  if (options.capacity > 0) most = std::min(most, options.capacity);
  return std::min(most, tokens);
}

kernels::QuantizedLayout summary_layout(const CacheShape& shape, const SummaryOptions& options) {
  return uniform_layout(shape, options.bits, options.bits);
}

SummaryOptions keep_everything() {
  SummaryOptions options;
  options.rule = {PivotRule::kPosition, ValueRule::kMean, BiasRule::kCount};  // Needs no queries.
  options.block = INT64_MAX;
  options.sinks = options.salient = options.salient_most = 0;
  return options;
}

SummaryOptions read_summary_options(Parameters* parameters, SummaryOptions options) {
  constexpr int64_t kMost = int64_t{1} << 20;
  Parameters& read = *parameters;
  options.block = read.integer("block", options.block, 2, kMost, "tokens that are summarized together");
  options.summaries = read.integer("r", options.summaries, 1, options.block,
                                   "summaries of a block, and of each group of `ratio` times as many; at most `block`");
  options.ratio = read.integer("ratio", options.ratio, 2, 64, "entries of a level that become one of the next");
  options.bits = static_cast<int>(read.integer_choice("summary_bits", options.bits, {16, 8, 4}, "of levels' entries"));
  options.level = read.integer("level", options.level, options.group(), kMost, "entries of a level at most");
  options.rule.pivots = choice(&read, "pivots", options.rule.pivots, kPivotRules, "whose key a summary has");
  options.rule.values = choice(&read, "values", options.rule.values, kValueRules, "how values are averaged");
  options.rule.bias = choice(&read, "bias", options.rule.bias, kBiasRules, "added to a summary's score");
  options.salient = read.integer("salient", options.salient, 0, options.block - 1, "exact tokens of a block: outliers");
  if (options.salient == 0) {
    read.refuse({"salient_most", "outliers", "salience", "eps", "decay", "retention", "gate"}, "salient");
  }
  options.salient_most = read.integer("salient_most", options.salient, options.salient, options.block - 1,
                                      "the same where attention is spread evenly; by default `salient`");
  options.outliers = std::max(options.outliers, options.salient_most);
  options.outliers = read.integer("outliers", options.outliers, options.salient_most, kMost,
                                  "in all; by default a third of the entries with `tokens`, `salient_most` in `lost`");
  if (options.salient == 0) options.outliers = 0;
  options.salience = choice(&read, "salience", options.salience, kSaliences, "what makes an outlier");
  options.least_score = read.number("eps", options.least_score, 0, 1e30, "an outlier below it joins the next block");
  options.decay = read.number("decay", options.decay, 0, 1, "share of an outlier's score lost at each boundary");
  options.retention = read.integer("retention", options.retention, 0, kMost, "tokens that spare an attended one");
  options.probes = read.integer("probes", options.probes, 1, kernels::kPageTokens, "queries before each boundary");
  options.shifts = read.integer("shifts", options.shifts, 0, 4, "times that each is asked again from further on");
  options.gate = read.text("gate", options.gate, "name of gates, for `salience` \"gate\"; absent: the model's own");
  return options;
}

void check_summary_capacity(const SummaryOptions& options, const std::string& key, int64_t beside, int64_t found) {
  const int64_t least = whole_pages(options.sinks + options.outliers + options.block + options.group());
  if (options.capacity >= least) return;
  throw CacheError("kv_cache." + key + ": expected at least " + std::to_string(least + beside) +
                   " (room for a block of " + std::to_string(options.block) + " tokens, " +
                   std::to_string(options.outliers) + " outliers, a group of " + std::to_string(options.group()) +
                   " summaries and " + std::to_string(beside) + " tail tokens), found " + std::to_string(found));
}

}  // namespace smartkv
