#include "cache/policies/block_summary/summary_store.h"

#include <algorithm>
#include <string>

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr auto kEntryBytes = static_cast<int64_t>(sizeof(SummaryEntry));

// Everything but pages that `entries` of each KV head of a layer take.
int64_t entry_state_bytes(const CacheShape& shape, int64_t entries) {
  const auto bias = whole_pages(entries) * static_cast<int64_t>(sizeof(float));
  return shape.n_kv_heads * (entries * kEntryBytes + bias);
}

// Pages of `entries` of a layer.
int64_t layer_pages_bytes(const CacheShape& shape, int64_t entries) { return dense_bytes(shape, entries) / shape.n_layers; }

int64_t probe_state_bytes(const CacheShape& shape, int64_t probes) {
  return shape.n_layers * probes * ProbeQueries::most_probe_bytes(shape);
}

// How far ahead a probe is asked again: from 64 tokens on, each time 8 times as far.
std::vector<int64_t> query_shifts(int64_t n) {
  std::vector<int64_t> shifts;
  for (int64_t i = 0, shift = kPageTokens; i < n; ++i, shift *= 8) shifts.push_back(shift);
  return shifts;
}

}  // namespace

std::unique_ptr<TokenStore> SummaryStoreFactory::create(const PolicyContext& context) const {
  return std::make_unique<SummaryStore>(context, options_, scorer_);
}

StoreFactory::Bytes SummaryStoreFactory::max_bytes(const PolicyContext& context, int64_t /*prompt_tokens*/,
                                                   int64_t /*n_tokens*/, int64_t n_left) const {
  const CacheShape& shape = context.shape;
  const int64_t scores = scorer_ == nullptr ? 0 : shape.n_layers * shape.n_kv_heads * n_left * static_cast<int64_t>(sizeof(float));
  Bytes bytes{0, probe_state_bytes(shape, options_.n_probes()) + scores};
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    const int64_t entries = options_.compresses(layer) ? most_summary_entries(options_, n_left) : n_left;
    bytes.pages += layer_pages_bytes(shape, entries);
    bytes.state += entry_state_bytes(shape, entries);
  }
  return bytes;
}

SummaryStore::SummaryStore(const PolicyContext& context, const SummaryOptions& options,
                           std::shared_ptr<const TokenScorer> scorer)
    : context_(&context),
      options_(options),
      scorer_(std::move(scorer)),
      layers_(static_cast<size_t>(context.shape.n_layers), Layer(context)),
      state_(context.pool) {}

void SummaryStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const size_t first = segments->size();
  state.kept.append_view(state.entries, segments);
  if (!options_.compresses(layer)) return;
  for (size_t page = 0; first + page < segments->size(); ++page) {
    (*segments)[first + page].bias = state.bias.data() + page * static_cast<size_t>(shape().n_kv_heads * kPageTokens);
  }
}

void SummaryStore::represented(int64_t layer, int64_t head, std::vector<int64_t>* positions) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const size_t first = positions->size();
  positions->resize(first + static_cast<size_t>(state.entries));
  state.heads[static_cast<size_t>(head)].for_each([&](const SummaryEntry& entry) {
    (*positions)[first + static_cast<size_t>(entry.place)] = entry.position;
  });
}

void SummaryStore::observe(const StageView& view, int64_t layer, const StoreProbe& probe) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  if (options_.needs_queries() && options_.compresses(layer)) {
    const int64_t before = state.queries.bytes();
    state.queries.add(shape(), probe);
    state_.set(state_.bytes() + state.queries.bytes() - before);
  }
  if (options_.salient == 0) return;
  const float even = 1.0f / static_cast<float>(probe.tail + probe.n_tail);
  for (size_t h = 0; h < state.heads.size(); ++h) {
    const float* mass = probe.mass + static_cast<int64_t>(h) * probe.stride + probe.entry;
    for (SummaryEntry& entry : state.heads[h].outliers) {
      if (mass[entry.place] > even) entry.retained_until = static_cast<int32_t>(view.next_boundary + options_.retention);
    }
  }
}

void SummaryStore::prepare(const StageView& view) {
  shed_ = 0;
  if (options_.salient > 0 && options_.least_score > 0) {
    shed_ = INT64_MAX;
    for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
      if (!options_.compresses(layer)) continue;
      for (const SummaryHead& head : layers_[static_cast<size_t>(layer)].heads) {
        const auto below = [&](const SummaryEntry& entry) { return entry.score < static_cast<float>(options_.least_score); };
        shed_ = std::min(shed_, static_cast<int64_t>(std::count_if(head.outliers.begin(), head.outliers.end(), below)));
      }
    }
  }
  if (scorer_ == nullptr) return;
  const int64_t n = view.leaving() - view.tail_first;
  for (Layer& layer : layers_) layer.scores.resize(static_cast<size_t>(shape().n_kv_heads * n));
  int64_t scored = view.tail_first;
  const auto take = [&](int64_t layer, int64_t head, const TokenScores& run) {
    std::copy(run.scores.begin(), run.scores.end(),
              layers_[static_cast<size_t>(layer)].scores.begin() + head * n + scored - view.tail_first);
  };
  score_tail(*context_, *scorer_, view.tail, &scored, view.leaving(), false, take);
  state_.set(state_bytes());
}

void SummaryStore::take(const StageView& view, int64_t layer, LeavingTokens* tokens) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim, first = view.tail_first, n = view.leaving() - first;
  const SummaryOptions& options = options_.compresses(layer) ? options_ : plain_;
  const std::vector<int64_t> shifts = query_shifts(options.shifts);
  std::vector<float> k(static_cast<size_t>(dim)), v(k.size());
  std::vector<SampledQueries> queries(static_cast<size_t>(heads));
  std::vector<HeadCompaction> compactions;
  SummaryWork work;
  for (int64_t h = 0; h < heads; ++h) {
    const std::span<const LeavingTokens::Token> leaving = tokens->of(h);
    if (h > 0 && leaving.size() != tokens->of(0).size()) {
      throw CacheError("summaries: expected as many tokens of each KV head, found " + std::to_string(tokens->of(0).size()) +
                       " and " + std::to_string(leaving.size()));
    }
    SampledQueries& sampled = queries[static_cast<size_t>(h)];
    if (options.needs_queries()) sampled = state.queries.sampled(*context_, tail, h, shifts);
    HeadCompaction& compaction =
        compactions.emplace_back(options, dim, state.kept, h, sampled, &state.heads[static_cast<size_t>(h)]);
    for (const LeavingTokens::Token& token : leaving) {
      tokens->load(h, token, k.data(), v.data());
      const float score = state.scores.empty() ? 0 : state.scores[static_cast<size_t>(h * n + token.position - first)];
      compaction.add(token.position, k.data(), v.data(), score);
    }
    work = compaction.compact(view.next_boundary, shed_);
  }
  state.taken += static_cast<int64_t>(tokens->of(0).size());
  const int64_t entries = state.heads[0].entries();
  for (const SummaryHead& head : state.heads) {
    if (head.entries() == entries) continue;
    throw CacheError("summaries: expected " + std::to_string(entries) + " entries of each KV head, found " +
                     std::to_string(head.entries()));
  }
  state.kept.reserve(std::min(state.entries, entries), entries);
  for (int64_t h = 0; h < heads; ++h) {
    for (const HeadCompaction::Write& write : compactions[static_cast<size_t>(h)].settle()) {
      state.kept.own(write.place);
      state.kept.store(write.place, h, write.kv, write.kv + dim);
    }
    tokens->leave(h, {});
  }
  state.kept.truncate(entries);
  state.entries = entries;
  state.work.consolidations += work.consolidations;
  state.work.watermark_hits += work.watermark_hits;
  fill_bias(&state);
}

void SummaryStore::fill_bias(Layer* layer) const {
  const int64_t heads = shape().n_kv_heads;
  layer->bias.assign(static_cast<size_t>(whole_pages(layer->entries) * heads), 0.0f);
  for (int64_t h = 0; h < heads; ++h) {
    layer->heads[static_cast<size_t>(h)].for_each([&](const SummaryEntry& entry) {
      const int64_t page = entry.place / kPageTokens, slot = entry.place % kPageTokens;
      layer->bias[static_cast<size_t>((page * heads + h) * kPageTokens + slot)] = entry.bias;
    });
  }
}

void SummaryStore::finish(const StageView& /*view*/) {
  for (Layer& layer : layers_) {
    layer.queries.clear();
    std::vector<float>().swap(layer.scores);
  }
  state_.set(state_bytes());
}

StoreGrowth SummaryStore::growth(const StageView& view, int64_t end) const {
  const CacheShape& of = shape();
  StoreGrowth growth;
  const TokenRange probes{std::max(view.tokens, view.next_boundary - n_probes()), std::min(end, view.next_boundary)};
  if (n_probes() > 0 && !probes.empty()) growth.state += probe_state_bytes(of, n_probes());
  if (view.next_boundary > end) return growth;
  const int64_t leaving = view.leaving() - view.tail_first, gone = view.boundaries.leaving(end) - view.tail_first;
  const bool more = view.boundaries.after(view.next_boundary) <= end;
  for (int64_t i = 0; i < of.n_layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const int64_t now = layer.entries, next = std::min(now + leaving, most_entries(i, layer.taken + leaving));
    growth.take.push_back(layer.kept.growth(view.may_share ? 0 : now, next));
    const int64_t last = more ? std::max(next, most_entries(i, layer.taken + gone)) : next;
    growth.later += layer_pages_bytes(of, last) - layer_pages_bytes(of, next);
    growth.state += entry_state_bytes(of, last) - entry_state_bytes(of, now);
  }
  if (more && n_probes() > 0) growth.state += probe_state_bytes(of, n_probes());
  if (scorer_ != nullptr) growth.state += of.n_layers * of.n_kv_heads * gone * static_cast<int64_t>(sizeof(float));
  return growth;
}

int64_t SummaryStore::most_entries(int64_t layer, int64_t tokens) const {
  const int64_t most = options_.compresses(layer) ? most_summary_entries(options_, tokens) : tokens;
  return std::max(most, layers_[static_cast<size_t>(layer)].entries);
}

int64_t SummaryStore::state_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const SummaryHead& head : layer.heads) bytes += head.entries() * kEntryBytes;
    bytes += static_cast<int64_t>((layer.bias.size() + layer.scores.size()) * sizeof(float)) + layer.queries.bytes();
  }
  return bytes;
}

void SummaryStore::save(StateWriter* out) const {
  for (const Layer& layer : layers_) {
    for (const int64_t n : {layer.entries, layer.taken, layer.work.consolidations, layer.work.watermark_hits}) out->value(n);
    layer.kept.save(layer.entries, out);
    layer.queries.save(out);
    for (const SummaryHead& head : layer.heads) head.save(out);
  }
}

void SummaryStore::load(const StageView& view, StateReader* in) {
  for (Layer& layer : layers_) load_layer(view, in, &layer);
  state_.set(state_bytes());
}

void SummaryStore::load_layer(const StageView& view, StateReader* in, Layer* layer) const {
  layer->entries = in->value<int64_t>();
  layer->taken = in->value<int64_t>();
  layer->work.consolidations = in->value<int64_t>();
  layer->work.watermark_hits = in->value<int64_t>();
  in->expect(layer->taken >= 0 && layer->taken <= view.tail_first, "a count of tokens taken");
  in->expect(layer->entries >= 0 && layer->entries <= layer->taken, "a count of entries");
  layer->kept.load(0, layer->entries, in);
  layer->queries.load(shape(), in);
  for (SummaryHead& head : layer->heads) {
    head.load(view.tail_first, in);
    in->expect(head.entries() == layer->entries && head.tokens() == layer->taken, "entries that stand for all tokens taken");
  }
  fill_bias(layer);
}

void SummaryStore::add_stats(const StageView& view, CacheStats* stats) const {
  int64_t kept = 0;
  for (const Layer& layer : layers_) kept += layer.entries;
  stats->tokens_kept += kept / shape().n_layers;
  stats->bytes += state_.bytes();
  for (const Layer& layer : layers_) {
    stats->bytes += layer.kept.bytes();
    if (view.may_share) stats->shared_bytes += layer.kept.shared_bytes();
  }
}

void SummaryStore::add_details(std::map<std::string, double>* details) const {
  const auto shown = static_cast<size_t>(std::min(options_.first_layer, shape().n_layers - 1));
  const SummaryHead& first = layers_[shown].heads[0];  // all that are compressed have as many
  int64_t error = 0;
  for (const Layer& layer : layers_) {
    for (const SummaryHead& head : layer.heads) error = std::max(error, std::abs(head.tokens() - layer.taken));
  }
  double summaries = 0;
  for (size_t i = 0; i < first.levels.size(); ++i) {
    (*details)["level_" + std::to_string(i + 1) + "_entries"] = static_cast<double>(first.levels[i].size());
    summaries += static_cast<double>(first.levels[i].size());
  }
  (*details)["summary_entries"] = summaries;
  (*details)["summary_levels"] = static_cast<double>(first.levels.size());
  (*details)["outlier_entries"] = static_cast<double>(first.outliers.size());
  (*details)["pending_entries"] = static_cast<double>(first.pending.size());
  (*details)["summarized_tokens"] = static_cast<double>(layers_[shown].taken);
  (*details)["mass_error"] = static_cast<double>(error);
  (*details)["consolidations"] = static_cast<double>(layers_[shown].work.consolidations);
  (*details)["watermark_hits"] = static_cast<double>(layers_[shown].work.watermark_hits);
}

}  // namespace smartkv
