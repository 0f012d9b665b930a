// Upper bounds of the bytes of a SummaryStore.
#include <algorithm>
#include <bit>

#include "cache/policies/block_summary/summary_store.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr auto kEntryBytes = static_cast<int64_t>(sizeof(SummaryEntry));

// Returns the bytes of state, pages not included, of `entries` entries of each KV head of a layer.
int64_t entry_state_bytes(const CacheShape& shape, int64_t entries) {
  const auto bias = whole_pages(entries) * static_cast<int64_t>(sizeof(float));
  return shape.n_kv_heads * (entries * kEntryBytes + bias);
}

// Returns the bytes of the dense pages of `entries` entries of a layer.
int64_t layer_pages_bytes(const CacheShape& shape, int64_t entries) { return dense_bytes(shape, entries) / shape.n_layers; }

int64_t probe_state_bytes(const CacheShape& shape, int64_t probes) {
  return shape.n_layers * probes * ProbeQueries::most_probe_bytes(shape);
}

// Bounds for a layer with quantized levels, after a boundary at which `leaving` tokens come, with `last` entries in
// total.
struct CodedBounds {
  // Dense entries: sinks, outliers, a block that is not full, and less than a page of each level.
  int64_t dense = 0;
  int64_t new_pages = 0;  // Quantized pages made at the boundary.
};

// levels: number of levels after the boundary. rest: entries of levels that were dense before it.
CodedBounds coded_bounds(const SummaryOptions& options, int64_t levels, int64_t rest, int64_t leaving, int64_t last) {
  const int64_t dense = options.sinks + options.outliers + options.block + levels * kPageTokens;
  // Entries that enter the finest level. Each consolidation then turns pages into at most half as many, plus less than
  // one.
  const int64_t entering = leaving + options.block;
  const int64_t new_pages = (rest + 2 * entering + levels * kPageTokens) / kPageTokens;
  return {std::min(dense, last), std::min(new_pages, last / kPageTokens)};
}

// Returns how many levels a layer may get at a boundary at which `leaving` tokens come.
int64_t more_levels(int64_t leaving) { return 1 + std::bit_width(static_cast<uint64_t>(leaving / kPageTokens)); }

}  // namespace

StoreFactory::Bytes SummaryStoreFactory::max_bytes(const PolicyContext& context, int64_t /*prompt_tokens*/,
                                                   int64_t /*n_tokens*/, int64_t n_left) const {
  const CacheShape& shape = context.shape;
  const int64_t scores = scorer_ == nullptr ? 0 : shape.n_layers * shape.n_kv_heads * n_left * static_cast<int64_t>(sizeof(float));
  Bytes bytes{0, probe_state_bytes(shape, options_.n_probes()) + scores};
  const int64_t page = options_.coded() ? quantized_bytes(shape, summary_layout(shape, options_)) : 0;
  int64_t made_at_once = 0;
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    const int64_t entries = options_.compresses(layer) ? most_summary_entries(options_, n_left) : n_left;
    bytes.state += entry_state_bytes(shape, entries);
    bytes.pages += layer_pages_bytes(shape, entries);
    if (!options_.coded() || !options_.compresses(layer)) continue;
    const int64_t entering = n_left / options_.block * (options_.summaries + options_.salient_most);
    const CodedBounds bounds = coded_bounds(options_, more_levels(entering), 0, n_left, entries);
    const int64_t codes = entries / kPageTokens * page;
    bytes.pages += std::min<int64_t>(0, layer_pages_bytes(shape, bounds.dense) + codes - layer_pages_bytes(shape, entries));
    made_at_once = std::max(made_at_once, bounds.new_pages * page);
  }
  // A layer's new pages exist before the slots that they empty are freed.
  bytes.pages += context.workers() * made_at_once;
  return bytes;
}

StoreGrowth SummaryStore::growth(const StageView& view, int64_t end) const {
  const CacheShape& of = shape();
  StoreGrowth growth;
  const TokenRange probes{std::max(view.tokens, view.next_boundary - n_probes()), std::min(end, view.next_boundary)};
  if (n_probes() > 0 && !probes.empty()) growth.state += probe_state_bytes(of, n_probes());
  if (view.next_boundary > end) return growth;
  const int64_t gone = view.boundaries.leaving(end) - view.tail_first;
  const bool more = view.boundaries.after(view.next_boundary) <= end;
  if (options_.coded()) {
    grow_coded(view, end, &growth);
  } else {
    grow_dense(view, end, &growth);
  }
  if (more && n_probes() > 0) growth.state += probe_state_bytes(of, n_probes());
  if (scorer_ != nullptr) growth.state += of.n_layers * of.n_kv_heads * gone * static_cast<int64_t>(sizeof(float));
  return growth;
}

void SummaryStore::grow_dense(const StageView& view, int64_t end, StoreGrowth* growth) const {
  const int64_t leaving = view.leaving() - view.tail_first, gone = view.boundaries.leaving(end) - view.tail_first;
  const bool more = view.boundaries.after(view.next_boundary) <= end;
  for (int64_t i = 0; i < shape().n_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const int64_t now = layer.entries, next = std::min(now + leaving, most_entries(i, layer.taken + leaving));
    growth->take.push_back(layer.kept.growth(view.may_share ? 0 : now, next));
    const int64_t last = more ? std::max(next, most_entries(i, layer.taken + gone)) : next;
    growth->later += layer_pages_bytes(shape(), last) - layer_pages_bytes(shape(), next);
    growth->state += entry_state_bytes(shape(), last) - entry_state_bytes(shape(), now);
  }
}

// For one boundary: new quantized pages exist before slots are freed. For several: everything that the layer may come
// to hold.
void SummaryStore::grow_coded(const StageView& view, int64_t end, StoreGrowth* growth) const {
  const int64_t leaving = view.leaving() - view.tail_first, gone = view.boundaries.leaving(end) - view.tail_first;
  const bool more = view.boundaries.after(view.next_boundary) <= end;
  const int64_t page = quantized_bytes(shape(), summary_layout(shape(), options_));
  for (int64_t i = 0; i < shape().n_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const SummaryHead& head = layer.heads[0];
    const auto levels = static_cast<int64_t>(head.levels.size());
    const int64_t now = layer.entries, dense = layer.dense_entries(), coded = n_pages(layer.quantized);
    const int64_t beside = static_cast<int64_t>(head.sinks.size() + head.outliers.size() + head.pending.size());
    const int64_t next = std::min(now + leaving, most_entries(i, layer.taken + leaving));
    const int64_t last = more ? std::max(next, most_entries(i, layer.taken + gone)) : next;
    const bool compresses = options_.compresses(i);
    const auto bounds_of = [&](int64_t rest, int64_t coming, int64_t most) {
      return compresses ? coded_bounds(options_, levels + more_levels(coming), rest, coming, most) : CodedBounds{most, 0};
    };
    const CodedBounds bounds = bounds_of(dense - beside, leaving, next);
    const int64_t slots = layer.kept.growth(view.may_share ? 0 : dense, std::max(dense, bounds.dense));
    growth->take.push_back(slots + bounds.new_pages * page);
    growth->state += entry_state_bytes(shape(), last) - entry_state_bytes(shape(), now);
    if (!more) continue;
    const CodedBounds at_last = bounds_of(levels * kPageTokens, gone, last);
    const int64_t most = layer_pages_bytes(shape(), std::max(dense, at_last.dense)) +
                         (compresses ? (last / kPageTokens + at_last.new_pages) * page : 0);
    const int64_t held = view.may_share ? 0 : layer.kept.bytes() + coded * page;
    growth->later += std::max<int64_t>(0, most - held - growth->take.back());
  }
}

int64_t SummaryStore::most_entries(int64_t layer, int64_t tokens) const {
  const int64_t most = options_.compresses(layer) ? most_summary_entries(options_, tokens) : tokens;
  return std::max(most, layers_[static_cast<size_t>(layer)].entries);
}

}  // namespace smartkv
