// The entries of one KV head, and what a boundary makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/policies/block_summary/summary_options.h"
#include "cache/quantized_page.h"
#include "cache/stages/scratch_rows.h"
#include "cache/state_io.h"

namespace smartkv {

// It stands for `tokens` tokens, has the key of the one at `position`, and lives in slot `place` of the layer's dense pages,
// or in its level's pages of codes.
struct SummaryEntry {
  static constexpr int32_t kInCodes = INT32_MIN;

  int32_t position = 0;
  int32_t tokens = 1;
  float bias = 0;
  float score = 0;             // of a pending token or an outlier
  float retention = 0;         // 0 to 1, until `retained_until`, a position: the share of an outlier's decay that it is spared
  int32_t retained_until = 0;
  int32_t place = 0;           // or kInCodes; while a boundary lasts, -1 - i: somewhere else
};

// Of each level, the pages of codes of its oldest entries, kPageTokens each, all KV heads; all else is dense.
using LevelPages = std::vector<std::vector<QuantizedPageRef>>;
int64_t n_pages(const LevelPages& pages);

// Each list in order of age.
struct SummaryHead {
  std::vector<SummaryEntry> sinks, outliers;
  std::vector<std::vector<SummaryEntry>> levels;  // of summaries, the finest first
  std::vector<SummaryEntry> pending;              // tokens of a block that is not full yet

  int64_t entries() const;
  int64_t tokens() const;  // that all entries stand for
  void for_each(const std::function<void(SummaryEntry&)>& visit);
  void for_each(const std::function<void(const SummaryEntry&)>& visit) const;
  void save(StateWriter* out) const;
  // Throws CacheError unless places are those that entries beside `codes` need, and positions before `end`.
  void load(int64_t end, const LevelPages& codes, StateReader* in);
};

// How many of each a KV head has: they follow from how many tokens came, and when, so that all heads have as many.
struct SummaryWork {
  int64_t consolidations = 0;
  int64_t watermark_hits = 0;  // consolidations because of the capacity
};

// One KV head at one boundary. It says step by step what the backend is to do, so that all KV heads' jobs go together.
class HeadCompaction {
 public:
  // What a layer holds: slots, and pages of codes.
  struct Pages {
    const CacheShape& shape;
    const DenseLayer& kept;
    const LevelPages& codes;
    std::shared_ptr<kernels::KvBackend> backend;  // of both
  };
  // `queries`: to fit to. All references outlive this.
  HeadCompaction(const SummaryOptions& options, const Pages& pages, int64_t head, const SampledQueries& queries,
                 SummaryHead* entries);

  // A token that comes in, the next in order of position. from: stays until the jobs of settle() are done.
  void add(int32_t position, const kernels::TokenPlace& from, float score);

  // Jobs of one step of all KV heads. Results go where the jobs point to, until absorb().
  struct Jobs {
    std::vector<kernels::EntrySummary> summaries;
    std::vector<kernels::EntryFigures> figures;
  };
  // Makes blocks into summaries, `salient` tokens of each into outliers, and where there are too many outliers or summaries,
  // fewer ones. Outliers below the least score join the boundary's first block. As many of them as `shed` and `salient` allow
  // are not replaced; for each of the others the block gives its next best token. So all KV heads keep equally many.
  // `now`: the boundary; `shed`: outliers below the least score in the KV head of the layer that has fewest.
  void begin(int64_t now, int64_t shed, int64_t salient);
  bool step(Jobs* jobs);  // the next one; false: there is none
  void absorb();          // what it gave
  SummaryWork end();

  // Of each level, the pages of codes that were used up.
  const std::vector<size_t>& used_pages() const { return used_pages_; }
  // After end(): entries [first, first + kPageTokens) of a level go to a page of codes. Adds where they are.
  void take_page(size_t level, size_t first, std::vector<kernels::TokenPlace>* places);

  // At last: gives every entry that is not in codes a slot, from 0 on. What goes to slot `place`, `from` a row, a slot of the
  // tail or one past all that get any.
  struct Write {
    int64_t place;
    kernels::TokenPlace from;
  };
  std::vector<Write> settle();

 private:
  // What a step works on, and its results.
  struct Block {
    std::vector<SummaryEntry> entries;
    std::vector<kernels::KvSegment> codes;
    std::vector<kernels::TokenPlace> tokens;  // of those that are not in codes
    std::vector<float> bias, scores, summary_bias;
    std::vector<kernels::TokenPlace> rows;
    std::vector<int32_t> pivots, group;
    size_t level = 0;      // that its summaries go to
    bool chooses = false;  // scores are on their way
  };

  kernels::TokenPlace place_of(const SummaryEntry& entry) const;
  kernels::HeadEntries entries_of(const Block& block, bool with_queries) const;
  void load(std::vector<SummaryEntry> entries, size_t pages_level);  // as block_
  void choose(Jobs* jobs);
  void take_outliers();
  void summarize(int64_t most, size_t level, Jobs* jobs);
  std::vector<SummaryEntry> take_weakest(int64_t n);  // out of the outliers, in their order
  std::vector<SummaryEntry> take_shed();
  void demote(int64_t n);
  void consolidate(size_t level, int64_t n, Jobs* jobs);
  size_t largest_level();
  void add_summaries();

  const SummaryOptions& options_;
  Pages pages_;
  int64_t dim_, head_;
  const SampledQueries& queries_;
  SummaryHead* entries_;
  int64_t salient_ = 0;
  int64_t shed_ = 0;    // outliers that are not replaced
  bool sheds_ = false;  // the next block takes weak outliers in
  SummaryWork work_;
  Block block_;
  bool is_block_ = false;  // of tokens, not a group of summaries
  std::vector<size_t> used_pages_;
  ScratchRows memory_;
  std::vector<kernels::TokenPlace> elsewhere_;
};

// All their steps, from begin() to before end(), with the jobs of each step together. Waits for the backend at each.
void compact(kernels::KvBackend& backend, const CacheShape& shape, std::span<HeadCompaction> heads);

}  // namespace smartkv
