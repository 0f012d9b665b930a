#include "cache/policies/channel_packed/channel_store.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace smartkv {
namespace {

using kernels::kPageTokens;

constexpr int64_t kCheckedPages = 8;  // of a check, from the newest on, spread over all: it costs as much at any length

int64_t layer_state_bytes(const CacheShape& shape, int64_t probes) {
  const int64_t channels = shape.n_kv_heads * shape.head_dim;
  return channels * (2 * static_cast<int64_t>(sizeof(float)) + 3) + probes * ProbeQueries::most_probe_bytes(shape);
}

// mean += (1 - decay) (what - mean), or `what` the first time.
void average(bool known, double decay, const std::vector<double>& what, std::vector<float>* mean) {
  mean->resize(what.size());
  for (size_t i = 0; i < what.size(); ++i) {
    (*mean)[i] = static_cast<float>(known ? decay * (*mean)[i] + (1 - decay) * what[i] : what[i]);
  }
}

}  // namespace

std::unique_ptr<TokenStore> ChannelStoreFactory::create(const PolicyContext& context) const {
  return std::make_unique<ChannelStore>(context, options_);
}

StoreFactory::Bytes ChannelStoreFactory::max_bytes(const PolicyContext& context, int64_t /*prompt_tokens*/,
                                                   int64_t /*n_tokens*/, int64_t n_left) const {
  const CacheShape& shape = context.shape;
  const ChannelLayouts layouts = channel_layouts(shape, options_);
  const int64_t page = std::max(quantized_bytes(shape, layouts.full),
                                quantized_bytes(shape, layouts.packed) + quantized_bytes(shape, layouts.residual));
  const int64_t workers = context.workers();
  const int64_t pages = n_left / kPageTokens, state = shape.n_layers * layer_state_bytes(shape, options_.probes);
  if (pages == 0) return {0, state};
  return {shape.n_layers * (quantized_bytes(shape, widest_layout(shape)) + (pages - 1) * page) + workers * page, state};
}

ChannelStore::ChannelStore(const PolicyContext& context, const ChannelOptions& options)
    : PageStore(context),
      options_(options),
      layouts_(channel_layouts(context.shape, options)),
      layers_(static_cast<size_t>(context.shape.n_layers)),
      state_(context.pool) {}

void ChannelStore::observe(const StageView& /*view*/, int64_t layer, const StoreProbe& probe) {
  layers_[static_cast<size_t>(layer)].queries.add(shape(), probe);
  if (layer + 1 == shape().n_layers) state_.set(state_bytes());
}

ChannelStore::Seen ChannelStore::see(const StageView& view, int64_t layer, int64_t made) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  Seen seen{std::vector<double>(static_cast<size_t>(heads * dim), 0.0), std::vector<double>(static_cast<size_t>(heads * dim), 0.0)};
  std::vector<float> k(static_cast<size_t>(heads * kPageTokens * dim)), v(k.size());
  for (int64_t i = 0; i < made; ++i) {
    load_tail_page(context(), tail, n_pages() + i, k.data(), v.data());
    for (int64_t at = 0; at < heads * kPageTokens * dim; ++at) {
      const auto value = static_cast<double>(k[static_cast<size_t>(at)]);
      seen.k2[static_cast<size_t>(at / (kPageTokens * dim) * dim + at % dim)] += value * value / static_cast<double>(made * kPageTokens);
    }
  }
  const std::vector<SampledQueries> sampled = state.queries.sampled(context(), tail, {});
  for (int64_t head = 0; head < heads; ++head) {
    const SampledQueries& queries = sampled[static_cast<size_t>(head)];
    seen.asked = seen.asked || queries.n > 0;
    for (int64_t at = 0; at < queries.n * dim; ++at) {
      const auto value = static_cast<double>(queries.q[static_cast<size_t>(at)]);
      seen.q2[static_cast<size_t>(head * dim + at % dim)] += value * value / static_cast<double>(queries.n);
    }
  }
  return seen;
}

void ChannelStore::learn(const Seen& seen, Layer* layer) const {
  if (!seen.asked) return;
  average(layer->known, options_.decay, seen.q2, &layer->q2);
  average(layer->known, options_.decay, seen.k2, &layer->k2);
  layer->known = true;
}

std::vector<float> ChannelStore::worth(int64_t layer, int64_t head) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  if (!state.known) return {};
  const auto dim = static_cast<size_t>(shape().head_dim), first = static_cast<size_t>(head) * dim;
  const std::span<const float> k2 = std::span(state.k2).subspan(first, dim);
  return options_.query_aware ? query_key_worth(std::span(state.q2).subspan(first, dim), k2) : magnitude_worth(k2);
}

double ChannelStore::select(int64_t layer) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const auto dim = static_cast<size_t>(shape().head_dim);
  std::vector<uint8_t> selected;
  double least = state.selected.empty() ? -1 : 1;
  for (size_t head = 0; head < static_cast<size_t>(shape().n_kv_heads); ++head) {
    const std::vector<uint8_t> order = smartkv::channel_order(worth(layer, static_cast<int64_t>(head)), options_.key_channels);
    if (!state.selected.empty()) {
      least = std::min(least, retained(std::span(state.selected).subspan(head * dim, dim), order, options_.key_channels));
    }
    selected.insert(selected.end(), order.begin(), order.end());
  }
  state.selected = std::move(selected);
  return least;
}

void ChannelStore::load_page(int64_t layer, int64_t i, std::vector<float>* packed, std::vector<float>* full,
                             std::vector<float>* v) const {
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  const auto size = static_cast<size_t>(heads * kPageTokens * dim);
  for (auto* values : {packed, full, v}) values->resize(size);
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const QuantizedPageRef& residual = state.residual[static_cast<size_t>(i)];
  std::vector<float> rest(residual == nullptr ? 0 : size), none(rest.size());
  page(layer, i)->read(shape(), 0, heads, packed->data(), v->data());
  if (residual != nullptr) residual->read(shape(), 0, heads, rest.data(), none.data());
  context().pool->backend()->finish();
  *full = *packed;
  if (residual == nullptr) return;
  for (int64_t head = 0; head < heads; ++head) {
    const uint8_t* order = page(layer, i)->channel_order()->data() + head * dim;
    for (int64_t t = 0; t < kPageTokens; ++t) {
      const int64_t row = (head * kPageTokens + t) * dim;
      for (int64_t c = options_.key_channels; c < dim; ++c) {
        (*full)[static_cast<size_t>(row + order[c])] = rest[static_cast<size_t>(row + order[c])];
      }
    }
  }
}

Fidelity ChannelStore::check(const StageView& view, int64_t layer) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim, pages = n_pages() - 1;
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  // Keys of the sinks' page, of some packed pages and of the last tokens, by KV head.
  const int64_t checked = std::min(pages, kCheckedPages), last = std::min(kPageTokens, view.tokens - view.tail_first);
  const int64_t n = (1 + checked) * kPageTokens + last;
  std::vector<float> packed(static_cast<size_t>(heads * n * dim)), full(packed.size()), page_packed, page_full, v;
  for (int64_t c = 0; c <= checked; ++c) {
    load_page(layer, c == 0 ? 0 : pages - (c - 1) * pages / checked, &page_packed, &page_full, &v);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t from = head * kPageTokens * dim, to = (head * n + c * kPageTokens) * dim;
      std::copy_n(page_packed.begin() + from, kPageTokens * dim, packed.begin() + to);
      std::copy_n(page_full.begin() + from, kPageTokens * dim, full.begin() + to);
    }
  }
  tail.read(view.tokens - last, last, 0, heads, packed.data() + (n - last) * dim, nullptr, n * dim);
  context().pool->backend()->finish();
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t at = (head * n + n - last) * dim;
    std::copy_n(packed.begin() + at, last * dim, full.begin() + at);
  }
  Fidelity fidelity;
  const std::vector<SampledQueries> sampled = state.queries.sampled(context(), tail, {});
  std::vector<float> packed_scores(static_cast<size_t>(n)), full_scores(packed_scores.size());
  for (int64_t head = 0; head < heads; ++head) {
    const SampledQueries& queries = sampled[static_cast<size_t>(head)];
    for (int64_t i = 0; i < queries.n; ++i) {
      const float* q = queries.q.data() + i * dim;
      for (int64_t t = 0; t < n; ++t) {
        const float* k = packed.data() + (head * n + t) * dim;
        packed_scores[static_cast<size_t>(t)] = std::inner_product(q, q + dim, k, 0.0f);
        k = full.data() + (head * n + t) * dim;
        full_scores[static_cast<size_t>(t)] = std::inner_product(q, q + dim, k, 0.0f);
      }
      add_fidelity(full_scores, packed_scores, options_.limits.top, &fidelity);
    }
  }
  return fidelity;
}

ChannelStore::ChannelOrder ChannelStore::residual_order(const std::vector<uint8_t>& order) const {
  auto turned = std::make_shared<std::vector<uint8_t>>(order);
  for (auto head = turned->begin(); head != turned->end(); head += shape().head_dim) {
    std::rotate(head, head + options_.key_channels, head + shape().head_dim);
  }
  return turned;
}

void ChannelStore::pack_layer(int64_t layer) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  state.order = std::make_shared<const std::vector<uint8_t>>(state.selected);
  state.residual_order = residual_order(state.selected);
  state.packed = true;
  std::vector<float> k, full, v;
  for (int64_t i = 1; i < n_pages(); ++i) {
    load_page(layer, i, &k, &full, &v);
    const kernels::PageSource rows{{}, nullptr, k.data(), v.data()};
    state.residual[static_cast<size_t>(i)] =
        std::make_shared<QuantizedPage>(context().pool, layouts_.residual, state.residual_order, rows);
    set_page(layer, i, std::make_shared<QuantizedPage>(context().pool, layouts_.packed, state.order, rows));
  }
}

void ChannelStore::restore_layer(int64_t layer) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  std::vector<float> packed, full, v;
  for (int64_t i = 1; i < n_pages(); ++i) {
    load_page(layer, i, &packed, &full, &v);
    const std::shared_ptr<const std::vector<uint8_t>> order = page(layer, i)->channel_order();
    const kernels::PageSource rows{{}, nullptr, full.data(), v.data()};
    set_page(layer, i, std::make_shared<QuantizedPage>(context().pool, layouts_.restored, order, rows));
    state.residual[static_cast<size_t>(i)] = nullptr;
  }
  state.packed = false;
  state.streak = 0;
  state.selected.clear();
  state.known = false;
  state.order = state.residual_order = nullptr;
}

void ChannelStore::plan(const StageView& view, int64_t made) {
  const bool selects = view.next_boundary - last_update_ >= options_.update_every;
  const bool checks = view.next_boundary - last_check_ >= options_.check_every && n_pages() > 1;
  std::vector<Seen> seen(layers_.size());
  context().for_each(shape().n_layers, [&](int64_t layer) { seen[static_cast<size_t>(layer)] = see(view, layer, made); });
  share(&seen);
  std::vector<Finding> findings(layers_.size());
  context().for_each(shape().n_layers, [&](int64_t layer) {
    Layer& state = layers_[static_cast<size_t>(layer)];
    Finding& finding = findings[static_cast<size_t>(layer)];
    learn(seen[static_cast<size_t>(layer)], &state);
    finding.selected = selects && !state.packed && state.known;
    finding.checked = checks && state.packed;
    if (finding.selected) finding.retained = select(layer);
    if (finding.checked) finding.fidelity = check(view, layer);
  });
  share(&findings);
  std::vector<int64_t> failed(layers_.size(), 0);
  context().for_each(shape().n_layers, [&](int64_t layer) {
    Layer& state = layers_[static_cast<size_t>(layer)];
    const Finding& finding = findings[static_cast<size_t>(layer)];
    if (finding.selected) state.streak = finding.retained >= options_.retention ? state.streak + 1 : 0;
    if (finding.checked) {
      state.fidelity = finding.fidelity;
      if (!state.fidelity.passes(options_.limits)) {
        restore_layer(layer);
        failed[static_cast<size_t>(layer)] = 1;
      }
    } else if (!state.packed && state.streak >= options_.stable_updates) {
      pack_layer(layer);
    }
    state.residual.resize(static_cast<size_t>(n_pages() + made));
    if (!state.packed) return;
    for (int64_t i = std::max<int64_t>(1, n_pages()); i < n_pages() + made; ++i) {
      const std::vector<kernels::TokenPlace> places = tail_places(shape(), view.tail[static_cast<size_t>(layer)], i);
      state.residual[static_cast<size_t>(i)] = std::make_shared<QuantizedPage>(
          context().pool, layouts_.residual, state.residual_order, kernels::PageSource{places});
    }
  });
  if (selects) last_update_ = view.next_boundary;
  if (checks) last_check_ = view.next_boundary;
  backoffs_ += std::accumulate(failed.begin(), failed.end(), int64_t{0});
  checks_ += std::count_if(findings.begin(), findings.end(), [](const Finding& finding) { return finding.checked; });
}

void ChannelStore::share(std::vector<Seen>* seen) const {
  std::vector<double> asked;
  for (const Seen& of : *seen) asked.push_back(of.asked ? 1 : 0);
  context().sum(asked);
  for (size_t layer = 0; layer < asked.size(); ++layer) (*seen)[layer].asked = asked[layer] > 0;
}

void ChannelStore::share(std::vector<Finding>* findings) const {
  if (context().ranks() == 1) return;
  std::vector<double> own;
  for (const Finding& of : *findings) {
    const Fidelity& f = of.fidelity;
    own.insert(own.end(), {of.retained, static_cast<double>(f.queries), f.overlap, f.margin_drift, f.kl});
  }
  const std::vector<std::vector<double>> told = context().gather(std::move(own));
  for (size_t layer = 0; layer < findings->size(); ++layer) {
    Finding& of = (*findings)[layer];
    of.fidelity = {};
    for (const std::vector<double>& of_rank : told) {
      const double* values = &of_rank.at(5 * layer + 4) - 4;
      of.retained = std::min(of.retained, values[0]);
      of.fidelity += {static_cast<int64_t>(values[1]), values[2], values[3], values[4]};
    }
  }
}

QuantizedPageRef ChannelStore::pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const bool packed = state.packed && i > 0;
  const kernels::QuantizedLayout& layout = i == 0 ? widest_layout(shape()) : packed ? layouts_.packed : layouts_.full;
  return std::make_shared<QuantizedPage>(context().pool, layout, packed ? state.order : nullptr, kernels::PageSource{tokens});
}

int64_t ChannelStore::page_bytes(int64_t i) const {
  const kernels::QuantizedLayout layout = i == 0 ? widest_layout(shape()) : layouts_.full;  // at least what `packed` takes
  return quantized_bytes(shape(), layout);
}

void ChannelStore::end_boundary() {
  for (Layer& layer : layers_) layer.queries.clear();
  state_.set(state_bytes());
}

StoreGrowth ChannelStore::growth(const StageView& view, int64_t end) const {
  StoreGrowth growth = page_growth(view, end);
  const int64_t probing = shape().n_layers * options_.probes * ProbeQueries::most_probe_bytes(shape());
  if (end > view.next_boundary - n_probes()) growth.state += probing;
  if (view.next_boundary > end) return growth;
  const int64_t residual = quantized_bytes(shape(), layouts_.residual), full = quantized_bytes(shape(), layouts_.full);
  const int64_t workers = context().workers();
  const int64_t made = view.boundaries.leaving(end) / kPageTokens - n_pages();
  growth.state += shape().n_layers * (layer_state_bytes(shape(), 0) + made * residual);
  // A page changes by making another, with its residual; what others hold, too, stays.
  const int64_t more = std::max<int64_t>(0, quantized_bytes(shape(), layouts_.packed) + residual - full);
  growth.state += workers * (full + residual) + shape().n_layers * n_pages() * more;
  if (view.may_share) growth.state += shared_bytes() + residual_bytes();
  return growth;
}

}  // namespace smartkv
