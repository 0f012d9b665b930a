// What stores of channels share at a boundary: what they see, what they find, and the keys on which they compare attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cache/policies/channel_packed/fidelity.h"
#include "cache/stages/token_store.h"
#include "cache/summaries/probe_queries.h"

namespace smartkv {

// Of a layer: means of squares of queries and of the keys and values that leave, f64 [n_kv_heads, head_dim], and the queries, by KV head.
struct ChannelSeen {
  std::vector<double> q2, k2, v2;  // v2 empty: values are not looked at
  std::vector<SampledQueries> queries;
  bool asked = false;  // there were queries

  // Fills q2 and `asked` by the queries.
  void add_queries(const CacheShape& shape);
};
// Sets `asked` of each layer where any rank has queries.
void share(const PolicyContext& context, std::vector<ChannelSeen>* seen);

// Updates a mean: mean += (1 - decay) (what - mean); sets it to `what` unless it is known.
void average(bool known, double decay, const std::vector<double>& what, std::vector<float>* mean);

// What is decided on at a boundary, of a layer.
struct ChannelFinding {
  bool selected = false, checked = false;
  double retained = 1;  // share of the worth that the last selection still holds, in the KV head that holds the least
  Fidelity fidelity;
};
// Makes the ranks' findings one: the least that is retained, and all queries' fidelity.
void share(const PolicyContext& context, std::vector<ChannelFinding>* findings);

// The keys that a comparison of attention looks at, from the newest page on, spread over all: it costs as much at any length.
struct CheckedKeys {
  static constexpr int64_t kMostPages = 8;

  int64_t pages = 0;  // packed pages; page 0, the sinks', comes first
  int64_t last = 0;   // tokens of the tail
  int64_t keys() const { return (1 + pages) * kernels::kPageTokens + last; }

  // of_page(i, at) for each page, then of_tail(page, first, count, at) for the tail's pages; `at`: the first key's place among all.
  template <typename OfPage, typename OfTail>
  void for_each(const StageView& view, const DenseLayer& tail, int64_t n_pages, const OfPage& of_page, const OfTail& of_tail) const {
    using kernels::kPageTokens;
    for (int64_t c = 0; c <= pages; ++c) of_page(c == 0 ? 0 : n_pages - (c - 1) * n_pages / pages, c * kPageTokens);
    for (int64_t at = view.tokens - last - tail.first(), some = 0, end = view.tokens - tail.first(); at < end; at += some) {
      some = std::min(end - at, kPageTokens - at % kPageTokens);
      of_tail(tail.segment(at / kPageTokens, kPageTokens), at % kPageTokens, some, keys() - (end - at));
    }
  }
};
// n_pages: of a layer, besides the sinks'.
CheckedKeys checked_keys(const StageView& view, int64_t n_pages);

// Adds channel_overlap, channel_margin_drift and channel_kl: means over the layers that were checked, if any was.
void add_details(std::span<const Fidelity> layers, std::map<std::string, double>* details);

}  // namespace smartkv
