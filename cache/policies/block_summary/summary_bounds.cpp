// Upper bounds of the bytes of a SummaryStore.
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
int64_t layer_pages_bytes(const CacheShape& shape, int64_t entries) {
  return dense_bytes(shape, entries) / shape.n_layers;
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

StoreBytes SummaryStore::bytes_at(const StageView& view, const Moment& then) const {
  const int64_t n_layers = shape().n_layers, came = then.left - view.tail_first;
  const int64_t of_probe = options_.needs_queries() ? n_layers * ProbeQueries::most_probe_bytes(shape()) : 0;
  StoreBytes most{.state = then.probes(n_probes()) * of_probe};
  if (came == 0) most.state += state_.bytes() - view.now().probes(n_probes()) * of_probe;
  for (int64_t i = 0; i < n_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const int64_t entries = std::min(layer.entries + came, most_entries(i, layer.taken + came));
    const LayerBytes bytes = layer_at(view, then, i, entries);
    most.pages += bytes.pages;
    most.take.push_back(bytes.take);
    most.working = std::max(most.working, bytes.working);
    if (came > 0) most.state += entry_state_bytes(shape(), entries);
  }
  most.working *= std::min(n_layers, context_.workers());
  constexpr auto kScoreBytes = static_cast<int64_t>(sizeof(float));
  if (scorer_) most.prepared = n_layers * shape().n_kv_heads * then.taken * kScoreBytes;
  most.working += most.prepared;
  return most;
}

// A layer's new quantized pages exist before the slots that they empty are freed.
SummaryStore::LayerBytes SummaryStore::layer_at(const StageView& view, const Moment& then, int64_t i,
                                                int64_t entries) const {
  const Layer& layer = layers_[static_cast<size_t>(i)];
  const int64_t came = then.left - view.tail_first, dense = layer.dense_entries();
  const int64_t page = options_.coded() ? quantized_bytes(shape(), summary_layout(shape(), options_)) : 0;
  const int64_t held = layer.kept.bytes() + n_pages(layer.quantized) * page;
  if (came == 0) return {.pages = held};
  const bool is_next = then.last == view.next_boundary;
  const int64_t shared = view.may_share ? layer.kept.shared_bytes() : 0;
  LayerBytes bytes{.pages = layer_pages_bytes(shape(), entries) + shared};
  bytes.take = is_next ? bytes.pages - held : std::min(bytes.pages, layer_pages_bytes(shape(), then.taken));
  if (!options_.coded() || !options_.compresses(i)) return bytes;
  const SummaryHead& head = layer.heads[0];
  const int64_t beside = static_cast<int64_t>(head.sinks.size() + head.outliers.size() + head.pending.size());
  const int64_t of_block = options_.summaries + options_.salient_most;
  const int64_t entering = layer.taken > 0 ? came : came / options_.block * of_block;
  const int64_t levels = static_cast<int64_t>(head.levels.size()) + more_levels(entering);
  const int64_t rest = is_next ? dense - beside : levels * kPageTokens;
  const CodedBounds bounds = coded_bounds(options_, levels, rest, then.taken, entries);
  const int64_t made = bounds.new_pages * page;
  bytes.pages = std::min(bytes.pages, layer_pages_bytes(shape(), bounds.dense) + entries / kPageTokens * page + shared);
  for (const auto& pages : layer.quantized) bytes.pages += view.may_share ? shared_bytes_of(pages) : 0;
  bytes.take = layer_pages_bytes(shape(), std::max(dense, bounds.dense)) + shared + made;
  if (is_next) {
    bytes.take -= layer.kept.bytes();
    bytes.pages = std::min(bytes.pages, held + bytes.take);
  }
  bytes.working = made;
  return bytes;
}

int64_t SummaryStore::most_entries(int64_t layer, int64_t tokens) const {
  const int64_t most = options_.compresses(layer) ? most_summary_entries(options_, tokens) : tokens;
  return std::max(most, layers_[static_cast<size_t>(layer)].entries);
}

}  // namespace smartkv
