#include "cache/policies/block_summary/summary_store.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

// Returns how far ahead a probe query is asked again: 64 tokens at first, then each time 8 times as far.
std::vector<int64_t> query_shifts(int64_t n) {
  std::vector<int64_t> shifts;
  for (int64_t i = 0, shift = kPageTokens; i < n; ++i, shift *= 8) shifts.push_back(shift);
  return shifts;
}

}  // namespace

std::unique_ptr<TokenStore> SummaryStoreFactory::create(const PolicyContext& context) const {
  return std::make_unique<SummaryStore>(context, options_, scorer_);
}

SummaryStore::SummaryStore(const PolicyContext& context, const SummaryOptions& options,
                           std::optional<TokenScorer> scorer)
    : context_(context),
      options_(options),
      scorer_(std::move(scorer)),
      layers_(static_cast<size_t>(context.shape.n_layers), Layer(context)),
      state_(context.pool) {}

void SummaryStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const size_t first = segments->size();
  for (const auto& level : state.quantized) {
    for (const QuantizedPageRef& page : level) segments->push_back(page->segment());
  }
  state.kept.append_view(state.dense_entries(), segments);
  if (!options_.compresses(layer)) return;
  for (size_t page = 0; first + page < segments->size(); ++page) {
    (*segments)[first + page].bias = state.bias.data() + page * static_cast<size_t>(shape().n_kv_heads * kPageTokens);
  }
}

void SummaryStore::positions(int64_t layer, int64_t head, std::vector<int64_t>* positions) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const SummaryHead& of = state.heads[static_cast<size_t>(head)];
  for (size_t level = 0; level < state.quantized.size(); ++level) {
    const size_t coded = state.quantized[level].size() * kPageTokens;
    for (size_t i = 0; i < coded; ++i) positions->push_back(of.levels[level][i].position);
  }
  const size_t first = positions->size();
  positions->resize(first + static_cast<size_t>(state.dense_entries()));
  of.for_each([&](const SummaryEntry& entry) {
    if (entry.place == SummaryEntry::kInQuantized) return;
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
  if (options_.adapts() && options_.compresses(layer)) {
    for (int64_t h = 0; h < shape().n_kv_heads; ++h) {
      const std::span<const float> mass(probe.mass + h * probe.stride, static_cast<size_t>(probe.tail + probe.n_tail));
      state.entropies += entropy_share(mass);
      ++state.n_entropies;
    }
  }
  const float even = 1.0f / static_cast<float>(probe.tail + probe.n_tail);
  for (size_t h = 0; h < state.heads.size(); ++h) {
    const float* mass = probe.mass + h * probe.stride + probe.entry + n_pages(state.quantized) * kPageTokens;
    for (SummaryEntry& entry : state.heads[h].outliers) {
      if (!(mass[entry.place] > even)) continue;
      entry.retention = std::max(entry.retention, 1 - even / mass[entry.place]);
      entry.retained_until = static_cast<int32_t>(view.next_boundary + options_.retention);
    }
  }
}

void SummaryStore::prepare(const StageView& view) {
  // These values decide how many entries each KV head has, so they cover the KV heads of all tensor-parallel ranks.
  if (options_.adapts()) share_entropies();
  shed_.assign(layers_.size(), options_.sheds() ? INT64_MAX : 0);
  if (options_.sheds()) {
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      for (const SummaryHead& head : layers_[layer].heads) {
        const auto below = [&](const SummaryEntry& entry) {
          return entry.score < static_cast<float>(options_.least_score);
        };
        shed_[layer] = std::min(shed_[layer],
                                static_cast<int64_t>(std::count_if(head.outliers.begin(), head.outliers.end(), below)));
      }
    }
    for (const std::vector<int64_t>& of_rank : context_.gather(shed_)) {
      for (size_t layer = 0; layer < layers_.size(); ++layer) shed_[layer] = std::min(shed_[layer], of_rank.at(layer));
    }
  }
  if (!scorer_) return;
  const int64_t n = view.leaving() - view.tail_first;
  for (Layer& layer : layers_) layer.scores.resize(static_cast<size_t>(shape().n_kv_heads * n));
  int64_t scored = view.tail_first;
  const auto take = [&](int64_t layer, const TokenScores& run) {
    for (int64_t head = 0; head < shape().n_kv_heads; ++head) {
      const std::span<const float> scores = run.of_head(head);
      std::copy(scores.begin(), scores.end(),
                layers_[static_cast<size_t>(layer)].scores.begin() + head * n + scored - view.tail_first);
    }
  };
  score_tail(context_, *scorer_, view, &scored, view.leaving(), false, take);
  state_.set(state_bytes());
}

void SummaryStore::share_entropies() {
  std::vector<double> sums;
  for (const Layer& layer : layers_) sums.insert(sums.end(), {layer.entropies, static_cast<double>(layer.n_entropies)});
  context_.sum(sums);
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    layers_[layer].entropies = sums[2 * layer];
    layers_[layer].n_entropies = static_cast<int64_t>(sums[2 * layer + 1]);
  }
}

void SummaryStore::take(const StageView& view, int64_t layer, EvictedTokens* tokens) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, first = view.tail_first, n = view.leaving() - first;
  const SummaryOptions& options = options_.compresses(layer) ? options_ : plain_;
  const std::shared_ptr<kernels::KvBackend>& backend = context_.pool->backend();
  std::vector<SampledQueries> queries(static_cast<size_t>(heads));
  if (options.needs_queries()) queries = state.queries.sampled(context_, tail, query_shifts(options.shifts));
  std::vector<HeadCompaction> compactions;
  compactions.reserve(static_cast<size_t>(heads));
  const HeadCompaction::Pages pages{shape(), state.kept, state.quantized, backend};
  const int64_t salient =
      options.salient_at(state.n_entropies == 0 ? 0 : state.entropies / static_cast<double>(state.n_entropies));
  for (int64_t h = 0; h < heads; ++h) {
    const std::span<const EvictedTokens::Token> leaving = tokens->of(h);
    if (h > 0 && leaving.size() != tokens->of(0).size()) {
      throw CacheError("summaries: expected the same number of tokens for each KV head, found " +
                       std::to_string(tokens->of(0).size()) + " and " + std::to_string(leaving.size()));
    }
    HeadCompaction& compaction = compactions.emplace_back(options, pages, h, queries[static_cast<size_t>(h)],
                                                          &state.heads[static_cast<size_t>(h)]);
    for (const EvictedTokens::Token& token : leaving) {
      const float score = state.scores.empty() ? 0 : state.scores[static_cast<size_t>(h * n + token.position - first)];
      compaction.add(token.position, tokens->place(h, token), score);
    }
    compaction.begin(view.next_boundary, shed_[static_cast<size_t>(layer)], salient);
  }
  compact(*backend, shape(), compactions);
  SummaryWork work;
  for (HeadCompaction& compaction : compactions) work = compaction.end();
  state.taken += static_cast<int64_t>(tokens->of(0).size());
  const int64_t entries = state.heads[0].entries();
  for (const SummaryHead& head : state.heads) {
    if (head.entries() == entries) continue;
    throw CacheError("summaries: expected " + std::to_string(entries) + " entries for each KV head, found " +
                     std::to_string(head.entries()));
  }
  const int64_t before = state.dense_entries();
  make_pages(compactions[0].used_pages(), &compactions, &state);
  state.entries = entries;
  const int64_t dense_entries = state.dense_entries();
  state.kept.reserve(std::min(before, dense_entries), dense_entries);
  std::vector<kernels::TokenMove> moves;
  for (int64_t h = 0; h < heads; ++h) {
    for (const HeadCompaction::Write& write : compactions[static_cast<size_t>(h)].settle()) {
      state.kept.own(write.place);
      moves.push_back({write.from, state.kept.place(write.place, h)});
    }
  }
  backend->move(shape().type, shape().head_dim, moves);
  for (int64_t h = 0; h < heads; ++h) tokens->leave(h, {});
  state.kept.truncate(dense_entries);
  state.work.consolidations += work.consolidations;
  state.work.watermark_hits += work.watermark_hits;
  fill_bias(&state);
}

// Releases the quantized pages that were used up, and makes new ones where levels have enough entries.
void SummaryStore::make_pages(const std::vector<size_t>& used, std::vector<HeadCompaction>* compactions,
                              Layer* layer) const {
  for (size_t level = 0; level < used.size(); ++level) {
    auto& pages = layer->quantized[level];
    pages.erase(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(used[level]));
  }
  const auto& levels = layer->heads[0].levels;  // Equally long in all KV heads.
  if (!options_.coded() || levels.empty()) return;
  const kernels::QuantizedLayout layout = summary_layout(shape(), options_);
  layer->quantized.resize(levels.size());
  for (size_t level = 0; level < levels.size(); ++level) {
    for (auto& pages = layer->quantized[level]; (pages.size() + 1) * kPageTokens <= levels[level].size();) {
      std::vector<kernels::TokenPlace> places;
      for (HeadCompaction& compaction : *compactions) compaction.take_page(level, pages.size() * kPageTokens, &places);
      pages.push_back(std::make_shared<QuantizedPage>(context_.pool, layout, nullptr, kernels::PageSource{places}));
    }
  }
}

void SummaryStore::fill_bias(Layer* layer) const {
  const int64_t heads = shape().n_kv_heads, coded = n_pages(layer->quantized) * kPageTokens;
  layer->bias.assign(static_cast<size_t>(whole_pages(layer->entries) * heads), 0.0f);
  for (int64_t h = 0; h < heads; ++h) {
    int64_t next = 0;  // Levels are visited in the order of their pages.
    layer->heads[static_cast<size_t>(h)].for_each([&](const SummaryEntry& entry) {
      const int64_t place = entry.place == SummaryEntry::kInQuantized ? next++ : coded + entry.place;
      layer->bias[static_cast<size_t>((place / kPageTokens * heads + h) * kPageTokens + place % kPageTokens)] =
          entry.bias;
    });
  }
}

void SummaryStore::finish(const StageView& /*view*/) {
  for (Layer& layer : layers_) {
    layer.queries.clear();
    layer.n_entropies = 0;
    layer.entropies = 0;
    std::vector<float>().swap(layer.scores);
  }
  state_.set(state_bytes());
}

int64_t SummaryStore::state_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const SummaryHead& head : layer.heads) bytes += head.entries() * static_cast<int64_t>(sizeof(SummaryEntry));
    bytes += static_cast<int64_t>((layer.bias.size() + layer.scores.size()) * sizeof(float)) + layer.queries.bytes();
  }
  return bytes;
}

void SummaryStore::save(StateWriter* out) const {
  for (const Layer& layer : layers_) {
    out->fields(layer.entries, layer.taken, layer.work.consolidations, layer.work.watermark_hits,
                static_cast<int64_t>(layer.quantized.size()));
    for (const auto& level : layer.quantized) {
      out->value(static_cast<int64_t>(level.size()));
      for (const QuantizedPageRef& page : level) page->save(out);
    }
    layer.kept.save(layer.dense_entries(), out);
    layer.queries.save(out);
    out->fields(layer.n_entropies, layer.entropies);
    for (const SummaryHead& head : layer.heads) head.save(out);
  }
}

void SummaryStore::load(const StageView& view, StateReader* in) {
  for (Layer& layer : layers_) load_layer(view, in, &layer);
  state_.set(state_bytes());
}

void SummaryStore::load_pages(StateReader* in, Layer* layer) const {
  const auto levels = in->value<int64_t>();
  in->expect(levels >= 0 && levels <= (options_.coded() ? in->left() : 0), "a count of levels");
  layer->quantized.resize(static_cast<size_t>(levels));
  for (auto& pages : layer->quantized) {
    const auto n = in->value<int64_t>();
    in->expect(n >= 0 && n <= in->left() / kPageTokens, "a count of pages");
    while (static_cast<int64_t>(pages.size()) < n) {
      pages.push_back(std::make_shared<QuantizedPage>(context_.pool, nullptr, in));
      in->expect(pages.back()->layout() == summary_layout(shape(), options_), "a page of summaries");
    }
  }
  in->expect(layer->dense_entries() >= 0, "entries for the quantized pages");
}

void SummaryStore::load_layer(const StageView& view, StateReader* in, Layer* layer) const {
  in->fields(layer->entries, layer->taken, layer->work.consolidations, layer->work.watermark_hits);
  in->expect(layer->taken >= 0 && layer->taken <= view.tail_first, "a count of tokens taken");
  in->expect(layer->entries >= 0 && layer->entries <= layer->taken, "a count of entries");
  load_pages(in, layer);
  layer->kept.load(0, layer->dense_entries(), in);
  layer->queries.load(shape(), in);
  in->fields(layer->n_entropies, layer->entropies);
  in->expect(layer->n_entropies >= 0 && layer->entropies >= 0 &&
                 layer->entropies <= 1.001 * static_cast<double>(layer->n_entropies),
             "valid probe entropies");
  for (SummaryHead& head : layer->heads) {
    head.load(view.tail_first, layer->quantized, in);
    in->expect(head.entries() == layer->entries && head.tokens() == layer->taken,
               "entries that represent all tokens taken");
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
    for (const auto& pages : layer.quantized) {
      stats->bytes += bytes_of(pages);
      if (view.may_share) stats->shared_bytes += shared_bytes_of(pages);
    }
  }
}

void SummaryStore::add_details(std::map<std::string, double>* details) const {
  const auto shown = static_cast<size_t>(std::min(options_.first_layer, shape().n_layers - 1));
  const SummaryHead& first = layers_[shown].heads[0];  // Stands for all compressed layers.
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
  (*details)["coded_entries"] = static_cast<double>(n_pages(layers_[shown].quantized) * kPageTokens);
  (*details)["summary_levels"] = static_cast<double>(first.levels.size());
  (*details)["outlier_entries"] = static_cast<double>(first.outliers.size());
  (*details)["pending_entries"] = static_cast<double>(first.pending.size());
  (*details)["summarized_tokens"] = static_cast<double>(layers_[shown].taken);
  (*details)["mass_error"] = static_cast<double>(error);
  (*details)["consolidations"] = static_cast<double>(layers_[shown].work.consolidations);
  (*details)["watermark_hits"] = static_cast<double>(layers_[shown].work.watermark_hits);
}

}  // namespace smartkv
