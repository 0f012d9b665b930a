// The entries of one KV head of a SummaryStore, and how a boundary changes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/policies/block_summary/summary_jobs.h"
#include "cache/policies/block_summary/summary_options.h"
#include "cache/quantized_page.h"
#include "cache/state_io.h"
#include "cache/stores/scratch_rows.h"

namespace smartkv {

// An entry stands for `tokens` tokens and has the key of the token at `position`. It is stored in slot `place` of the
// layer's dense pages, or in a quantized page of its level.
struct SummaryEntry {
  static constexpr int32_t kInQuantized = INT32_MIN;

  int32_t position = 0;
  int32_t tokens = 1;
  float bias = 0;
  // Score of a pending token or of an outlier.
  float score = 0;
  // Share of its decay that an outlier is spared until position `retained_until`, 0 to 1.
  float retention = 0;
  int32_t retained_until = 0;
  // The slot, or kInQuantized for a quantized page. While a boundary is committed, -1 - i means elsewhere_[i] of
  // HeadCompaction.
  int32_t place = 0;
};

// By level: quantized pages of its oldest entries. Each page has kPageTokens entries of every KV head. All other
// entries are dense.
using LevelPages = std::vector<std::vector<QuantizedPageRef>>;
int64_t n_pages(const LevelPages& pages);

// The entries of one KV head. Each list is in order of age, the oldest first.
struct SummaryHead {
  std::vector<SummaryEntry> sinks, outliers;
  std::vector<std::vector<SummaryEntry>> levels;  // Levels of summaries, the finest first.
  std::vector<SummaryEntry> pending;              // Tokens of a block that is not full yet.

  int64_t entries() const;
  int64_t tokens() const;  // Tokens that all entries stand for.
  template <typename Visit>
  void for_each(const Visit& visit) {
    visit_all(*this, visit);
  }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    visit_all(*this, visit);
  }
  void save(StateWriter* out) const;
  // Reads what save() wrote. Throws CacheError unless the entries that are not in `quantized` have places from 0 on,
  // one each, and all positions are below `end`.
  void load(int64_t end, const LevelPages& quantized, StateReader* in);

 private:
  template <typename Head, typename Visit>
  static void visit_all(Head& head, const Visit& visit) {
    for (auto* list : {&head.sinks, &head.outliers}) std::for_each(list->begin(), list->end(), visit);
    for (auto& level : head.levels) std::for_each(level.begin(), level.end(), visit);
    std::for_each(head.pending.begin(), head.pending.end(), visit);
  }
};

// Counts of one KV head's work. They follow from how many tokens came and when, so all KV heads have the same.
struct SummaryWork {
  int64_t consolidations = 0;
  int64_t watermark_hits = 0;  // Consolidations because the capacity was exceeded.
};

// The compaction of one KV head at one boundary. Step by step it says which jobs the backend is to run, so that the
// jobs of all KV heads run together.
//
// Use: add() each token, begin(), then step() and absorb() in turn until step() returns false, end(), take_page() for
// each new quantized page, settle(). compact() runs the steps of several heads.
class HeadCompaction {
 public:
  // The layer's dense pages and quantized pages.
  struct Pages {
    const CacheShape& shape;
    const DenseLayer& kept;
    const LevelPages& quantized;
    std::shared_ptr<kernels::KvBackend> backend;  // The backend of all these pages.
  };
  // queries: the queries to fit summaries to. Everything passed by reference must outlive this object.
  HeadCompaction(const SummaryOptions& options, const Pages& pages, int64_t head, const SampledQueries& queries,
                 SummaryHead* entries);

  // Adds a token; tokens come in order of position. `from` must stay valid until the jobs of settle() are done.
  void add(int32_t position, const kernels::TokenPlace& from, float score);

  // Jobs of one step, of all KV heads together. The memory that they point to receives the results, which absorb() then
  // uses.
  struct Jobs {
    std::vector<EntrySummary> summaries;
    std::vector<EntryStats> stats;
  };
  // Prepares the steps. These turn blocks into summaries, make `salient` tokens of each block outliers, and reduce
  // outliers and summaries where there are too many.
  //
  // Outliers below the least score join the first block of the boundary. As many of them as `shed` and `salient` allow
  // are not replaced; for each of the others the block gives its next best token. So all KV heads keep equally many.
  //
  // now: the boundary. shed: number of outliers below the least score in the KV head of the layer that has the fewest.
  void begin(int64_t now, int64_t shed, int64_t salient);
  // Adds the next step's jobs. Returns false if there is no next step.
  bool step(Jobs* jobs);
  // Uses the results of the step's jobs. REQUIRES: they are there.
  void absorb();
  // Ends the steps and returns what was done.
  SummaryWork end();

  // By level: how many quantized pages, the oldest first, were used up.
  const std::vector<size_t>& used_pages() const { return used_pages_; }
  // Called after end(): entries [first, first + kPageTokens) of a level go to a quantized page. Appends where they are.
  void take_page(size_t level, size_t first, std::vector<kernels::TokenPlace>* places);

  // Called last: gives every entry outside quantized pages a slot, from 0 on. Returns the tokens to write: each into
  // slot `place` from `from`, which is a row, a slot of the tail, or a slot beyond the ones that are in use afterwards.
  struct Write {
    int64_t place;
    kernels::TokenPlace from;
  };
  std::vector<Write> settle();

 private:
  // The entries that a step works on, and its results.
  struct Block {
    std::vector<SummaryEntry> entries;
    std::vector<kernels::KvSegment> quantized;
    std::vector<kernels::TokenPlace> tokens;  // Places of the entries that are not in `quantized`.
    std::vector<float> bias, scores, summary_bias;
    std::vector<kernels::TokenPlace> rows;
    std::vector<int32_t> pivots, group;
    size_t level = 0;      // The level to which its summaries go.
    bool chooses = false;  // The scores that choose outliers are being computed.
  };

  kernels::TokenPlace place_of(const SummaryEntry& entry) const;
  HeadEntries entries_of(const Block& block, bool with_queries) const;
  // Makes `entries` the block. Entries in quantized pages use up pages of level pages_level.
  void load(std::vector<SummaryEntry> entries, size_t pages_level);
  void choose(Jobs* jobs);
  void take_outliers();
  void summarize(int64_t most, size_t level, Jobs* jobs);
  // Removes the n outliers of least score, and returns them in their order.
  std::vector<SummaryEntry> take_weakest(int64_t n);
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
  int64_t shed_ = 0;    // Outliers that are not replaced.
  bool sheds_ = false;  // The next block takes in weak outliers.
  SummaryWork work_;
  Block block_;
  bool is_block_ = false;  // block_ is a block of tokens, not a group of summaries.
  std::vector<size_t> used_pages_;
  ScratchRows memory_;
  // Places of entries that have no slot yet; see SummaryEntry::place.
  std::vector<kernels::TokenPlace> elsewhere_;
};

// Runs all steps of the heads, after begin() and before end(), with the jobs of each step together. Waits for the
// backend at each step.
void compact(kernels::KvBackend& backend, const CacheShape& shape, std::span<HeadCompaction> heads);

}  // namespace smartkv
