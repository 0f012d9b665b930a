// The entries of one KV head, and what a boundary makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/dense_layer.h"
#include "cache/policies/block_summary/summary_options.h"
#include "cache/quantized_page.h"
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
  int32_t place = 0;           // or kInCodes; -1 - row while it is being made
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

// One KV head at one boundary.
class HeadCompaction {
 public:
  // What a layer holds: slots, and pages of codes.
  struct Pages {
    const CacheShape& shape;
    const DenseLayer& kept;
    const LevelPages& codes;
    kernels::KvBackend& backend;  // of both
  };
  // `queries`: to fit to. All references outlive this.
  HeadCompaction(const SummaryOptions& options, const Pages& pages, int64_t head, const SampledQueries& queries,
                 SummaryHead* entries);

  // A token that comes in, the next in order of position. k, v: f32 [head_dim].
  void add(int32_t position, const float* k, const float* v, float score);
  // Makes blocks into summaries, `salient` tokens of each into outliers, and where there are too many outliers or summaries,
  // fewer ones. `now`: the boundary; the `shed` outliers of least score go in any case.
  SummaryWork compact(int64_t now, int64_t shed, int64_t salient);

  // Of each level, the pages of codes that compact() used up.
  const std::vector<size_t>& used_pages() const { return used_pages_; }
  // After compact(): entries [first, first + kPageTokens) of a level go to a page of codes. k, v: f32 [kPageTokens, head_dim],
  // there after KvBackend::finish().
  void take_page(size_t level, size_t first, float* k, float* v);

  // Slot `place` gets K and V: f32 [2, head_dim], valid as long as this; or those of slot `from`, past all that get any.
  struct Write {
    int64_t place;
    const float* kv;
    int64_t from;
  };
  // At last: gives every entry that is not in codes a slot, from 0 on. What is to be written there.
  std::vector<Write> settle();

 private:
  struct Block;  // entries with their K and V

  Block load(std::span<const SummaryEntry> entries, bool with_attention) const;
  Block load_oldest(size_t level, int64_t n);  // of a level, which are about to go
  const float* row_of(const SummaryEntry& entry) const { return rows_.data() + (-1 - entry.place) * 2 * dim_; }
  // Of entries, those that are not in codes: f32 [entries, head_dim] each, there after KvBackend::finish().
  void read(std::span<const SummaryEntry> entries, float* k, float* v) const;
  void complete(bool with_attention, Block* block) const;
  void summarize_block(int64_t salient);
  void choose_outliers(Block* block, int64_t salient, std::vector<SummaryEntry>* rest);
  void demote(int64_t n);
  void consolidate(size_t level, int64_t n);
  size_t largest_level();
  void add_summaries(const Block& block, int64_t most, size_t level);

  const SummaryOptions& options_;
  Pages pages_;
  int64_t dim_, head_;
  const SampledQueries& queries_;
  SummaryHead* entries_;
  std::vector<size_t> used_pages_;
  std::vector<float> rows_;  // f32 [rows, 2, head_dim] of entries that are being made
};

}  // namespace smartkv
