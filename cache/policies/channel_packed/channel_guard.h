// Shared by the stores of channel_packed: what a boundary shows them, what they find, and the keys over which they
// compare attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cache/policies/channel_packed/fidelity.h"
#include "cache/stores/token_store.h"
#include "cache/summaries/probe_queries.h"

namespace smartkv {

// Statistics of one layer at a boundary: means of squares of the queries and of the evicted keys and values, f64
// [n_kv_heads, head_dim], and the queries, by KV head.
struct ChannelSeen {
  std::vector<double> q2, k2, v2;  // v2 is empty if values are not looked at.
  std::vector<SampledQueries> queries;
  bool asked = false;  // There were queries.

  // Fills in q2 and `asked` from the queries.
  void add_queries(const CacheShape& shape);
};
// Sets `asked` of each layer if any tensor-parallel rank has queries of it.
void share(const PolicyContext& context, std::vector<ChannelSeen>* seen);

// Updates a mean: mean += (1 - decay) (what - mean). If the mean is not known yet, sets it to `what`.
void average(bool known, double decay, const std::vector<double>& what, std::vector<float>* mean);

// Findings about one layer at a boundary, on which the decisions about it are based.
struct ChannelFinding {
  // Channels were selected; attention was compared.
  bool selected = false, checked = false;
  // Share of the best channels' worth that the last selection still holds, in the KV head that holds the least.
  double retained = 1;
  Fidelity fidelity;
};
// Combines the findings of all tensor-parallel ranks: the least share that is retained, and the fidelity over the
// queries of all.
void share(const PolicyContext& context, std::vector<ChannelFinding>* findings);

// The keys over which attention is compared: the sinks' page, up to kMostPages packed pages spread evenly from the
// newest on, and the end of the tail. So a comparison costs the same at any length.
struct CheckedKeys {
  static constexpr int64_t kMostPages = 8;

  int64_t pages = 0;  // Packed pages besides page 0, which holds the sinks and comes first.
  int64_t last = 0;   // Last tokens of the tail.
  int64_t keys() const { return (1 + pages) * kernels::kPageTokens + last; }

  // Calls of_page(i, at) for each page, then of_tail(page, first, count, at) for each page of the tail. `at` is the
  // place of the first key among all.
  template <typename OfPage, typename OfTail>
  void for_each(const StageView& view, const DenseLayer& tail, int64_t n_pages, const OfPage& of_page,
                const OfTail& of_tail) const {
    using kernels::kPageTokens;
    for (int64_t c = 0; c <= pages; ++c) of_page(c == 0 ? 0 : n_pages - (c - 1) * n_pages / pages, c * kPageTokens);
    for (int64_t at = view.tokens - last - tail.first(), some = 0, end = view.tokens - tail.first(); at < end;
         at += some) {
      some = std::min(end - at, kPageTokens - at % kPageTokens);
      of_tail(tail.segment(at / kPageTokens, kPageTokens), at % kPageTokens, some, keys() - (end - at));
    }
  }
};
// n_pages: packed pages of a layer, without the sinks' page.
CheckedKeys checked_keys(const StageView& view, int64_t n_pages);

// Adds channel_overlap, channel_margin_drift and channel_kl: means over the layers that were checked. Adds nothing if
// none was.
void add_details(std::span<const Fidelity> layers, std::map<std::string, double>* details);

}  // namespace smartkv
