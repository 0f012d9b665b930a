// What a store of summaries does with its tokens, and how much it may hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/boundaries.h"
#include "cache/parameters.h"
#include "cache/sequence_cache.h"
#include "kernels/block_summarizer.h"
#include "kernels/quantized_page.h"

namespace smartkv {

using kernels::BiasRule;
using kernels::PivotRule;
using kernels::SampledQueries;
using kernels::SummaryRule;
using kernels::ValueRule;

// What makes a token of a block worth its exact K and V.
enum class Salience {
  kNovelty,    // 1 - cosine between its key and the nearest pivot's
  kValueNorm,  // |v|
  kAttention,  // what the probe queries give it
  kGate,       // how long the learned gate expects it to be of use
};
inline constexpr std::string_view kSaliences[] = {"novelty", "value_norm", "attention", "gate"};

struct SummaryOptions {
  SummaryRule rule;
  int64_t block = 64;      // tokens that are summarised together
  int64_t summaries = 8;   // of a block, and of each group of `ratio` times as many summaries
  int64_t ratio = 2;       // entries of a level that become one of the next
  int64_t level = 256;     // entries of a level at most
  int bits = 16;           // of a level's entries: 16: dense; 8 or 4: in pages of codes, each as soon as it is full
  int64_t capacity = 0;    // entries of a layer and KV head in all, in whole pages; 0: what the levels make
  int64_t sinks = 4;       // of the sequence's first tokens, exact for ever; only the first store of a chain sees them
  int64_t salient = 0;     // exact tokens of a block
  int64_t salient_most = 0;  // the same where attention is spread evenly; at least `salient`
  int64_t outliers = 0;    // exact tokens in all, besides sinks
  Salience salience = Salience::kGate;
  double least_score = 0;  // outliers below it join the next block, each in its own layer and KV head
  double decay = 0;        // of an outlier's score at each boundary, less what its retention spares
  // Tokens for which an outlier that drew n > 1 times an even share of a probe's attention has a retention of 1 - 1 / n.
  int64_t retention = 256;
  int64_t probes = 8;      // queries before each boundary
  int64_t shifts = 2;      // how many times each of them is asked again from further on
  int64_t first_layer = 0, last_layer = INT64_MAX;  // those outside keep every token as it is
  std::string gate;        // name of the gates, for Salience::kGate

  bool needs_queries() const { return rule.needs_queries() || (salient > 0 && salience == Salience::kAttention); }
  int64_t n_probes() const { return needs_queries() || salient > 0 ? probes : 0; }
  bool compresses(int64_t layer) const { return layer >= first_layer && layer <= last_layer; }
  bool coded() const { return bits < 16; }
  // Exact tokens of a block where the probes' attention has this entropy, a share of the greatest.
  int64_t salient_at(double entropy) const;
  bool adapts() const { return salient_most > salient; }
  bool sheds() const { return salient > 0 && least_score > 0; }
  // Entries that are consolidated together: where levels are in pages of codes, whole pages.
  int64_t group() const { return coded() ? whole_pages(summaries * ratio) : summaries * ratio; }
};

// The most entries of a layer and KV head after `tokens` tokens were taken.
int64_t most_summary_entries(const SummaryOptions& options, int64_t tokens);

// Of the pages of codes that levels are in.
kernels::QuantizedLayout summary_layout(const CacheShape& shape, const SummaryOptions& options);

// Of a layer that is not compressed: tokens stay pending for ever.
SummaryOptions keep_everything();

// Reads block, r, ratio, summary_bits, level, pivots, values, bias, salient, salient_most, outliers, salience, eps, decay,
// retention, probes, shifts and gate. Throws CacheError.
SummaryOptions read_summary_options(Parameters* parameters, SummaryOptions defaults);

// Throws CacheError naming `key`, the parameter that bounds capacity + `beside` and is `found`, when there is no room for a
// block, the outliers and a group.
void check_summary_capacity(const SummaryOptions& options, const std::string& key, int64_t beside, int64_t found);

}  // namespace smartkv
