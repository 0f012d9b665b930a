#include "cache/policies/channel_packed/channel_store.h"

#include <numeric>

#include "kernels/pending_results.h"

namespace smartkv {

using kernels::kPageTokens;

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

ChannelSeen ChannelStore::seen_at(const StageView& view, int64_t layer, int64_t made) const {
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  const auto channels = static_cast<size_t>(heads * dim);
  ChannelSeen seen;
  seen.k2.assign(channels, 0.0);
  std::vector<double> squares(static_cast<size_t>(made) * channels);
  kernels::PendingResults results(*context().pool->backend());
  for (int64_t i = 0; i < made; ++i) {
    kernels::PageStats job{tail_page(tail, n_pages() + i), heads, 0, kPageTokens};
    job.k_squares = squares.data() + static_cast<size_t>(i) * channels;
    context().pool->backend()->page_stats(shape().type, dim, {&job, 1});
  }
  seen.queries = layers_[static_cast<size_t>(layer)].queries.sampled(context(), tail, {});
  results.wait();
  for (size_t at = 0; at < squares.size(); ++at)
    seen.k2[at % channels] += squares[at] / static_cast<double>(made * kPageTokens);
  seen.add_queries(shape());
  return seen;
}

void ChannelStore::learn(const ChannelSeen& seen, Layer* layer) const {
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
    const std::vector<float> worth = this->worth(layer, static_cast<int64_t>(head));
    const std::vector<uint8_t> order = smartkv::channel_order(worth, options_.key_channels);
    if (!state.selected.empty()) {
      least =
          std::min(least, retained(std::span(state.selected).subspan(head * dim, dim), worth, options_.key_channels));
    }
    selected.insert(selected.end(), order.begin(), order.end());
  }
  state.selected = std::move(selected);
  return least;
}

Fidelity ChannelStore::check(const StageView& view, int64_t layer, const std::vector<SampledQueries>& sampled) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t dim = shape().head_dim, pages = n_pages() - 1;
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  const CheckedKeys keys = checked_keys(view, pages);
  const int64_t n = keys.keys();
  std::vector<std::vector<float>> packed(sampled.size()), full(sampled.size());  // By KV head: f32 [queries, n].
  std::vector<kernels::KvSegment> residuals;
  residuals.reserve(static_cast<size_t>(1 + keys.pages));
  std::vector<kernels::KeyProducts> jobs;
  for (size_t head = 0; head < sampled.size(); ++head) {
    packed[head].resize(static_cast<size_t>(sampled[head].n * n));
    full[head].resize(packed[head].size());
  }
  // Adds jobs for tokens [first, first + count) of a page. `at` is the place of the first one among all keys.
  const auto ask = [&](const kernels::KvSegment& page, const kernels::KvSegment* residual, int64_t first, int64_t count,
                       int64_t at) {
    for (size_t head = 0; head < sampled.size(); ++head) {
      const SampledQueries& queries = sampled[head];
      kernels::KeyProducts job{page, nullptr, 0, static_cast<int64_t>(head), first, count, queries.q.data(), queries.n};
      job.out = packed[head].data() + at;
      job.out_stride = n;
      jobs.push_back(job);
      job.residual = residual;
      job.residual_columns = residual == nullptr ? 0 : dim - options_.key_channels;
      job.out = full[head].data() + at;
      jobs.push_back(job);
    }
  };
  const auto of_page = [&](int64_t i, int64_t at) {
    const QuantizedPageRef& residual = state.residual[static_cast<size_t>(i)];
    if (residual != nullptr) residuals.push_back(residual->segment());
    ask(page(layer, i)->segment(), residual == nullptr ? nullptr : &residuals.back(), 0, kPageTokens, at);
  };
  keys.for_each(view, tail, pages, of_page,
                [&](const kernels::KvSegment& page, int64_t first, int64_t count, int64_t at) {
                  ask(page, nullptr, first, count, at);
                });
  context().pool->backend()->multiply_keys(shape().type, dim, jobs);
  context().pool->backend()->finish();
  Fidelity fidelity;
  for (size_t head = 0; head < sampled.size(); ++head) {
    add_fidelities(full[head], packed[head], n, options_.limits.top, &fidelity);
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
  for (int64_t i = 1; i < n_pages(); ++i) {
    const kernels::KvSegment codes = page(layer, i)->segment();
    const kernels::PageSource source{{}, &codes};
    state.residual[static_cast<size_t>(i)] =
        std::make_shared<QuantizedPage>(context().pool, layouts_.residual, state.residual_order, source);
    set_page(layer, i, std::make_shared<QuantizedPage>(context().pool, layouts_.packed, state.order, source));
  }
}

void ChannelStore::restore_layer(int64_t layer) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  for (int64_t i = 1; i < n_pages(); ++i) {
    const kernels::KvSegment codes = page(layer, i)->segment(),
                             residual = state.residual[static_cast<size_t>(i)]->segment();
    kernels::PageSource source{{}, &codes};
    source.residual = &residual;
    source.residual_columns = shape().head_dim - options_.key_channels;
    set_page(
        layer, i,
        std::make_shared<QuantizedPage>(context().pool, layouts_.restored, page(layer, i)->channel_order(), source));
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
  std::vector<ChannelSeen> seen(layers_.size());
  context().for_each(shape().n_layers,
                     [&](int64_t layer) { seen[static_cast<size_t>(layer)] = seen_at(view, layer, made); });
  share(context(), &seen);
  std::vector<ChannelFinding> findings(layers_.size());
  context().for_each(shape().n_layers, [&](int64_t layer) {
    Layer& state = layers_[static_cast<size_t>(layer)];
    ChannelFinding& finding = findings[static_cast<size_t>(layer)];
    learn(seen[static_cast<size_t>(layer)], &state);
    finding.selected = selects && !state.packed && state.known;
    finding.checked = checks && state.packed;
    if (finding.selected) finding.retained = select(layer);
    if (finding.checked) finding.fidelity = check(view, layer, seen[static_cast<size_t>(layer)].queries);
  });
  share(context(), &findings);
  std::vector<int64_t> failed(layers_.size(), 0);
  context().for_each(shape().n_layers, [&](int64_t layer) {
    Layer& state = layers_[static_cast<size_t>(layer)];
    const ChannelFinding& finding = findings[static_cast<size_t>(layer)];
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
  checks_ +=
      std::count_if(findings.begin(), findings.end(), [](const ChannelFinding& finding) { return finding.checked; });
}

QuantizedPageRef ChannelStore::pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const bool packed = state.packed && i > 0;
  const kernels::QuantizedLayout& layout = i == 0 ? widest_layout(shape()) : packed ? layouts_.packed : layouts_.full;
  return std::make_shared<QuantizedPage>(context().pool, layout, packed ? state.order : nullptr,
                                         kernels::PageSource{tokens});
}

int64_t ChannelStore::page_bytes(int64_t i) const {
  // layouts_.full takes at least as many bytes as layouts_.packed.
  const kernels::QuantizedLayout layout = i == 0 ? widest_layout(shape()) : layouts_.full;
  return quantized_bytes(shape(), layout);
}

void ChannelStore::end_boundary() {
  for (Layer& layer : layers_) layer.queries.clear();
  count_residuals();
  state_.set(state_bytes());
}

StoreBytes ChannelStore::bytes_at(const StageView& view, const Moment& then) const {
  const int64_t n = then.left / kPageTokens, n_layers = shape().n_layers;
  const int64_t of_probe = n_layers * ProbeQueries::most_probe_bytes(shape());
  StoreBytes most{.pages = bytes() + residual_bytes_, .state = then.probes(options_.probes) * of_probe};
  if (n == n_pages()) {
    most.state += state_.bytes() - view.now().probes(options_.probes) * of_probe;
    return most;
  }
  // Means, selected channels, and the orders of pages and residuals.
  const int64_t of_channel = 2 * static_cast<int64_t>(sizeof(float)) + 3;
  most.state += n_layers * shape().n_kv_heads * shape().head_dim * of_channel;
  const int64_t full = page_bytes(1), residual = quantized_bytes(shape(), layouts_.residual);
  const auto [least, page] = std::minmax({full, quantized_bytes(shape(), layouts_.packed) + residual});
  // A layer is packed or restored page by page, and its new pages have a residual or not; a shared page stays.
  const int64_t before = n - then.taken / kPageTokens;
  const int64_t change = page - least;
  const auto more = [&](int64_t pages) { return n_layers * std::max<int64_t>(0, pages - 1) * change; };
  const int64_t made = layer_bytes(n) - layer_bytes(n_pages()) + (n - n_pages()) * (page - full);
  const int64_t all = page_bytes(0) + (n - 1) * page;
  int64_t copies = view.may_share ? shared_bytes() : 0;
  for (const Layer& layer : layers_) copies += view.may_share ? shared_bytes_of(layer.residual) : 0;
  most.pages = std::min(n_layers * all, most.pages + n_layers * made + more(n_pages())) + copies;
  most.working = context().workers() * page;
  most.prepared = most.working + copies + more(before) + n_layers * then.taken / kPageTokens * residual;
  most.take.assign(layers_.size(), layer_bytes(n) - layer_bytes(before));
  return most;
}

}  // namespace smartkv
