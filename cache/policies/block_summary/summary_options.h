// Options of SummaryStore.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cache/boundaries.h"
#include "cache/parameters.h"
#include "cache/policies/block_summary/block_summarizer.h"
#include "cache/sequence_cache.h"
#include "kernels/quantized_page.h"

namespace smartkv {

// How the tokens of a block are chosen that keep their exact K and V.
enum class Salience {
  kNovelty,    // 1 - cosine between its key and the nearest pivot's
  kValueNorm,  // |v|
  kAttention,  // Attention that the probe queries give it.
  kGate,       // Score of the learned gate: the position at which the token expires.
};
inline constexpr std::string_view kSaliences[] = {"novelty", "value_norm", "attention", "gate"};

struct SummaryOptions {
  SummaryRule rule;
  int64_t block = 64;     // Tokens that are summarized together.
  int64_t summaries = 8;  // Summaries of a block, and of each group of `ratio` times as many summaries.
  int64_t ratio = 2;      // Entries of a level that become one entry of the next level.
  int64_t level = 256;    // Most entries of a level.
  // Bits of the entries of levels. 16: dense. 8 or 4: in quantized pages, each made as soon as it is full.
  int bits = 16;
  // Most entries of a layer and KV head in total, in whole pages. 0: as many as the levels take.
  int64_t capacity = 0;
  // First tokens of the sequence, exact forever. Only the first store of a chain sees them.
  int64_t sinks = 4;
  int64_t salient = 0;  // Exact tokens of a block.
  // Exact tokens of a block if attention is spread evenly; at least `salient`.
  int64_t salient_most = 0;
  int64_t outliers = 0;  // Most exact tokens in total, besides sinks.
  Salience salience = Salience::kGate;
  // Outliers with a lower score join the next block, each in its own layer and KV head.
  double least_score = 0;
  // Share that an outlier's score loses at each boundary, less what its retention spares.
  double decay = 0;
  // Tokens for which retention lasts. An outlier that drew n > 1 times an even share of a probe's attention has a
  // retention of 1 - 1 / n.
  int64_t retention = 256;
  int64_t probes = 8;  // Probe queries before each boundary.
  // How many times each probe query is also asked from further away.
  int64_t shifts = 2;
  // Layers outside of this range keep every token as it is.
  int64_t first_layer = 0, last_layer = INT64_MAX;
  std::string gate;  // Name of the gates, for Salience::kGate.

  bool needs_queries() const { return rule.needs_queries() || (salient > 0 && salience == Salience::kAttention); }
  int64_t n_probes() const { return needs_queries() || salient > 0 ? probes : 0; }
  bool compresses(int64_t layer) const { return layer >= first_layer && layer <= last_layer; }
  bool coded() const { return bits < 16; }
  // Returns the number of exact tokens of a block. `entropy` is that of the probes' attention, as a share of the
  // greatest possible.
  int64_t salient_at(double entropy) const;
  bool adapts() const { return salient_most > salient; }
  bool sheds() const { return salient > 0 && least_score > 0; }
  // Returns how many entries are consolidated together. With quantized levels these are whole pages.
  int64_t group() const { return coded() ? whole_pages(summaries * ratio) : summaries * ratio; }
};

// Returns the most entries of a layer and KV head after it took `tokens` tokens.
int64_t most_summary_entries(const SummaryOptions& options, int64_t tokens);

// Returns the layout of the quantized pages of levels.
kernels::QuantizedLayout summary_layout(const CacheShape& shape, const SummaryOptions& options);

// Returns the options of a layer that is not compressed: its tokens stay pending forever.
SummaryOptions keep_everything();

// Reads block, r, ratio, summary_bits, level, pivots, values, bias, salient, salient_most, outliers, salience, eps,
// decay, retention, probes, shifts and gate. Throws CacheError.
SummaryOptions read_summary_options(Parameters* parameters, SummaryOptions defaults);

// Throws CacheError if the capacity has no room for the sinks, a block, the outliers and a group. The message names the
// parameter `key`, which bounds capacity + `beside` and has the value `found`.
void check_summary_capacity(const SummaryOptions& options, const std::string& key, int64_t beside, int64_t found);

}  // namespace smartkv
