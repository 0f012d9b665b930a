#include "cache/policies/channel_packed/cut_store.h"

#include "cache/policies/channel_packed/channel_selection.h"
#include "cache/quantized_page.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

template <typename T>
std::vector<T> part(const std::vector<T>& all, int64_t i, int64_t size) {
  return {all.begin() + i * size, all.begin() + (i + 1) * size};
}

}  // namespace

CutStore::CutStore(const PolicyContext& context, const CutOptions& options)
    : context_(context),
      options_(options),
      layers_(static_cast<size_t>(context.shape.n_layers)),
      state_(context.pool) {}

void CutStore::view(int64_t layer, std::vector<kernels::KvSegment>* segments) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  for (size_t i = 0; i < state.exact.size(); ++i) {
    segments->push_back(state.cut[i] == nullptr ? state.exact[i]->segment(kPageTokens) : state.cut[i]->segment());
  }
}

void CutStore::positions(int64_t layer, int64_t /*head*/, std::vector<int64_t>* positions) const {
  for (int64_t position = 0; position < entries(layer); ++position) positions->push_back(position);
}

void CutStore::observe(const StageView& /*view*/, int64_t layer, const StoreProbe& probe) {
  layers_[static_cast<size_t>(layer)].queries.add(shape(), probe);
  if (layer + 1 == shape().n_layers) state_.set(state_bytes());
}

ChannelSeen CutStore::seen_at(const StageView& view, int64_t layer) const {
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim, channels = heads * dim;
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  const int64_t first = view.tail_first, n = view.leaving() - first;
  ChannelSeen seen;
  for (auto* means : {&seen.k2, &seen.v2}) means->assign(static_cast<size_t>(channels), 0.0);
  std::vector<float> k(static_cast<size_t>(n * channels)), v(k.size());  // [n_kv_heads, n, head_dim]
  tail.read(first, n, 0, heads, k.data(), v.data(), n * dim);
  seen.queries = layers_[static_cast<size_t>(layer)].queries.sampled(context_, tail, {});
  context_.pool->backend()->finish();
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t at = 0; at < n * dim; ++at) {
      const auto row = static_cast<size_t>(head * n * dim + at), channel = static_cast<size_t>(head * dim + at % dim);
      seen.k2[channel] += static_cast<double>(k[row]) * k[row] / static_cast<double>(n);
      seen.v2[channel] += static_cast<double>(v[row]) * v[row] / static_cast<double>(n);
    }
  }
  seen.add_queries(shape());
  return seen;
}

void CutStore::learn(const ChannelSeen& seen, Layer* layer) const {
  if (!seen.asked) return;
  const bool known = !layer->q2.empty();
  average(known, options_.decay, seen.q2, &layer->q2);
  average(known, options_.decay, seen.k2, &layer->k2);
  average(known, options_.decay, seen.v2, &layer->v2);
}

const ChannelWorth* CutStore::worth() const { return followed_.backoffs == 0 ? options_.worth.get() : nullptr; }

std::vector<float> CutStore::key_worth(int64_t layer, int64_t head) const {
  const int64_t dim = shape().head_dim;
  if (worth() != nullptr)
    return part(worth()->keys, layer * context_.all_kv_heads() + context_.first_kv_head() + head, dim / 2);
  const Layer& state = layers_[static_cast<size_t>(layer)];
  if (state.k2.empty()) return {};
  const std::vector<float> k2 = part(state.k2, head, dim);
  return options_.query_aware ? query_key_worth(part(state.q2, head, dim), k2) : magnitude_worth(k2);
}

std::vector<float> CutStore::value_worth(int64_t layer, int64_t head) const {
  const int64_t dim = shape().head_dim;
  if (worth() != nullptr)
    return part(worth()->values, layer * context_.all_kv_heads() + context_.first_kv_head() + head, dim);
  const Layer& state = layers_[static_cast<size_t>(layer)];
  return state.v2.empty() ? std::vector<float>() : part(state.v2, head, dim);
}

double CutStore::select(int64_t layer) {
  const int64_t dim = shape().head_dim;
  CutChannels& last = layers_[static_cast<size_t>(layer)].selected;
  CutChannels channels{options_.key_channels, options_.value_channels, {}, {}};
  const bool known = !last.k_order.empty();
  double least = known ? 1 : -1;
  for (int64_t head = 0; head < shape().n_kv_heads; ++head) {
    const std::vector<float> keys = key_worth(layer, head), values = value_worth(layer, head);
    if (known) {
      least = std::min({least, retained(part(last.k_order, head, dim), keys, last.k),
                        retained(part(last.v_order, head, dim), values, last.v)});
    }
    const std::vector<uint8_t> k = channel_order(keys, channels.k), v = single_channel_order(values, channels.v);
    channels.k_order.insert(channels.k_order.end(), k.begin(), k.end());
    channels.v_order.insert(channels.v_order.end(), v.begin(), v.end());
  }
  last = std::move(channels);
  return least;
}

// Compares attention over the selected channels of K with attention over all. REQUIRES: the layer's pages are exact.
Fidelity CutStore::check(const StageView& view, int64_t layer, const std::vector<SampledQueries>& sampled) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t dim = shape().head_dim, pages = n_pages_ - 1;
  const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
  const CheckedKeys keys = checked_keys(view, pages);
  const int64_t n = keys.keys();
  Fidelity fidelity;
  for (size_t head = 0; head < sampled.size(); ++head) {
    const SampledQueries& queries = sampled[head];
    std::vector<float> held = queries.q;  // With 0 for the channels that are cut.
    for (int64_t i = 0; i < queries.n; ++i) {
      for (int64_t c = options_.key_channels; c < dim; ++c) {
        held[static_cast<size_t>(i * dim +
                                 state.selected.k_order[head * static_cast<size_t>(dim) + static_cast<size_t>(c)])] = 0;
      }
    }
    std::vector<float> full(static_cast<size_t>(queries.n * n)), cut(full.size());
    std::vector<kernels::KeyProducts> jobs;
    const auto ask = [&](const kernels::KvSegment& page, bool cuts, int64_t first, int64_t count, int64_t at) {
      kernels::KeyProducts job{page, nullptr, 0, static_cast<int64_t>(head), first, count, queries.q.data(), queries.n};
      job.out = full.data() + at;
      job.out_stride = n;
      jobs.push_back(job);
      job.q = cuts ? held.data() : queries.q.data();
      job.out = cut.data() + at;
      jobs.push_back(job);
    };
    const auto of_page = [&](int64_t i, int64_t at) {
      ask(state.exact[static_cast<size_t>(i)]->segment(kPageTokens), i > 0, 0, kPageTokens, at);
    };
    keys.for_each(view, tail, pages, of_page,
                  [&](const kernels::KvSegment& page, int64_t first, int64_t count, int64_t at) {
                    ask(page, false, first, count, at);
                  });
    context_.pool->backend()->multiply_keys(shape().type, dim, jobs);
    context_.pool->backend()->finish();
    add_fidelities(full, cut, n, options_.attention.top, &fidelity);
  }
  return fidelity;
}

void CutStore::cut_layer(Layer* layer) const {
  layer->channels = std::make_shared<const CutChannels>(layer->selected);
  for (size_t i = 1; i < layer->exact.size(); ++i) {
    layer->cut[i] = std::make_shared<CutPage>(context_.pool, layer->channels, layer->exact[i]->segment(kPageTokens));
    layer->exact[i] = nullptr;
  }
}

void CutStore::start_over() {
  for (Layer& layer : layers_) {
    layer.q2.clear();
    layer.k2.clear();
    layer.v2.clear();
    layer.selected = {};
    layer.streak = 0;
  }
}

void CutStore::prepare(const StageView& view) {
  const int64_t boundary = view.next_boundary, made = view.leaving() / kPageTokens - n_pages_;
  if (made == 0 || !options_.cuts(shape().head_dim)) return;
  if (boundary_ <= followed_.tokens && boundary > followed_.tokens && !followed_.passed) start_over();
  boundary_ = boundary;
  const bool selects = boundary - last_update_ >= options_.update_every || worth() != nullptr;
  const bool may_cut = boundary > followed_.tokens && n_pages_ > 1;
  std::vector<ChannelSeen> seen(layers_.size());
  context_.for_each(shape().n_layers, [&](int64_t layer) {  // A layer that is cut has nothing to select.
    if (!cut(layer)) seen[static_cast<size_t>(layer)] = seen_at(view, layer);
  });
  share(context_, &seen);
  std::vector<ChannelFinding> findings(layers_.size());
  context_.for_each(shape().n_layers, [&](int64_t layer) {
    Layer& state = layers_[static_cast<size_t>(layer)];
    ChannelFinding& finding = findings[static_cast<size_t>(layer)];
    learn(seen[static_cast<size_t>(layer)], &state);
    finding.selected = selects && state.channels == nullptr && !state.k2.empty();
    if (finding.selected) finding.retained = select(layer);
  });
  share(context_, &findings);
  context_.for_each(shape().n_layers, [&](int64_t layer) {
    Layer& state = layers_[static_cast<size_t>(layer)];
    ChannelFinding& finding = findings[static_cast<size_t>(layer)];
    if (finding.selected) state.streak = finding.retained >= options_.retention ? state.streak + 1 : 0;
    const bool settled = worth() != nullptr ? finding.selected : state.streak >= options_.stable_updates;
    finding.checked = may_cut && settled && state.channels == nullptr && seen[static_cast<size_t>(layer)].asked;
    if (finding.checked) finding.fidelity = check(view, layer, seen[static_cast<size_t>(layer)].queries);
  });
  share(context_, &findings);
  const int64_t before = cut_layers();
  context_.for_each(shape().n_layers, [&](int64_t layer) {
    const ChannelFinding& finding = findings[static_cast<size_t>(layer)];
    if (!finding.checked) return;
    Layer& state = layers_[static_cast<size_t>(layer)];
    state.fidelity = finding.fidelity;
    if (state.fidelity.passes(options_.attention)) {
      cut_layer(&state);
    } else {
      state.streak = 0;
    }
  });
  if (selects) last_update_ = boundary;
  if (before == 0 && cut_layers() > 0) unchecked_since_ = boundary;
}

bool CutStore::wants_check(const StageView& view) const {
  if (options_.check_every == 0 || cut_layers() == 0) return false;
  return boundary_ - std::max(unchecked_since_, view.boundaries.prompt_tokens) >= options_.check_every;
}

void CutStore::take(const StageView& view, int64_t layer, EvictedTokens* tokens) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  for (int64_t i = n_pages_; i < view.leaving() / kPageTokens; ++i) {
    PageRef page = view.tail[static_cast<size_t>(layer)].share(i * kPageTokens);
    CutPageRef cut;
    if (state.channels != nullptr && i > 0) {
      cut = std::make_shared<CutPage>(context_.pool, state.channels, page->segment(kPageTokens));
      page = nullptr;
    }
    state.exact.push_back(std::move(page));
    state.cut.push_back(std::move(cut));
  }
  for (int64_t head = 0; head < shape().n_kv_heads; ++head) tokens->leave(head, {});
}

void CutStore::finish(const StageView& /*view*/) {
  n_pages_ = static_cast<int64_t>(layers_[0].exact.size());
  for (Layer& layer : layers_) layer.queries.clear();
  count_pages();
  state_.set(state_bytes());
}

void CutStore::follow(const LogitCheck& check) { followed_ = check; }

bool CutStore::judge(std::span<const float> exact, std::span<const float> own, LogitCheck* check) {
  Fidelity fidelity;
  add_fidelity(exact, own, options_.logits.top, &fidelity);
  ++followed_.checks;
  followed_.passed = fidelity.passes(options_.logits);
  if (!followed_.passed) followed_.backoffs += shape().n_layers;
  followed_.overlap = fidelity.overlap;
  followed_.margin_drift = fidelity.margin_drift;
  followed_.kl = fidelity.kl;
  *check = followed_;
  return true;
}

StoreBytes CutStore::bytes_at(const StageView& view, const Moment& then) const {
  const int64_t n = then.left / kPageTokens, n_layers = shape().n_layers;
  const int64_t of_probe = n_layers * ProbeQueries::most_probe_bytes(shape());
  StoreBytes most{.pages = page_bytes_, .state = then.probes(options_.probes) * of_probe};
  if (n == n_pages_) {
    most.state += state_.bytes() - view.now().probes(options_.probes) * of_probe;
    return most;
  }
  // Means, and the orders of selected and of cut channels.
  const int64_t of_channel = 3 * static_cast<int64_t>(sizeof(float)) + 4;
  most.state += n_layers * shape().n_kv_heads * shape().head_dim * of_channel;
  // Exact pages are the tail's own. A page is cut by making another one; a shared page stays.
  const int64_t exact = context_.pool->page_bytes();
  const int64_t cut = cut_bytes(shape(), options_.key_channels, options_.value_channels);
  most.pages += n_layers * (n - n_pages_) * exact;
  int64_t copies = 0;
  for (int64_t layer = 0; layer < n_layers; ++layer) {
    for (const PageRef& page : layers_[static_cast<size_t>(layer)].exact) {
      copies += view.may_share && page != nullptr && page.use_count() > 1 ? cut : 0;
    }
    most.pages -= view.shared_before(layer, then.left) / exact * (exact - cut);
  }
  most.pages += copies;
  most.working = context_.workers() * cut;
  most.prepared = most.working + copies;
  most.take.assign(layers_.size(), then.taken / kPageTokens * cut);
  return most;
}

int64_t CutStore::cut_layers() const {
  return std::count_if(layers_.begin(), layers_.end(), [](const Layer& layer) { return layer.channels != nullptr; });
}

int64_t CutStore::state_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += static_cast<int64_t>((layer.q2.size() + layer.k2.size() + layer.v2.size()) * sizeof(float));
    bytes +=
        static_cast<int64_t>(layer.selected.k_order.size() + layer.selected.v_order.size()) + layer.queries.bytes();
    if (layer.channels != nullptr)
      bytes += static_cast<int64_t>(layer.channels->k_order.size() + layer.channels->v_order.size());
  }
  return bytes;
}

void CutStore::count_pages() {
  page_bytes_ = 0;
  for (const Layer& layer : layers_) {
    for (size_t i = 0; i < layer.exact.size(); ++i) {
      page_bytes_ += layer.cut[i] == nullptr ? context_.pool->page_bytes() : layer.cut[i]->bytes();
    }
  }
}

int64_t CutStore::shared_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (size_t i = 0; i < layer.exact.size(); ++i) {
      if (layer.cut[i] == nullptr) bytes += layer.exact[i].use_count() > 1 ? context_.pool->page_bytes() : 0;
      if (layer.cut[i] != nullptr) bytes += layer.cut[i].use_count() > 1 ? layer.cut[i]->bytes() : 0;
    }
  }
  return bytes;
}

void CutStore::add_stats(const StageView& view, CacheStats* stats) const {
  stats->tokens_kept += entries(0);
  stats->bytes += page_bytes_ + state_.bytes();
  if (view.may_share) stats->shared_bytes += shared_bytes();
}

void CutStore::add_details(std::map<std::string, double>* details) const {
  double pages = 0, k = 0, v = 0;
  std::vector<Fidelity> checks;
  const double bits = shape().type == kernels::KvType::kBf16 ? 16 : 32, dim = static_cast<double>(shape().head_dim);
  for (const Layer& layer : layers_) {
    for (const CutPageRef& page : layer.cut) {
      ++pages;
      k += bits * (page == nullptr ? 1 : static_cast<double>(page->channels()->k) / dim);
      v += bits * (page == nullptr ? 1 : static_cast<double>(page->channels()->v) / dim);
    }
    checks.push_back(layer.fidelity);
  }
  if (pages > 0) {
    (*details)["bits_k"] = k / pages;
    (*details)["bits_v"] = v / pages;
  }
  (*details)["packed_layers"] = static_cast<double>(cut_layers()) / static_cast<double>(shape().n_layers);
  (*details)["channel_backoffs"] = static_cast<double>(followed_.backoffs);
  (*details)["channel_checks"] = static_cast<double>(followed_.checks);
  smartkv::add_details(checks, details);
  if (followed_.checks == 0) return;
  (*details)["logit_overlap"] = followed_.overlap;
  (*details)["logit_margin_drift"] = followed_.margin_drift;
  (*details)["logit_kl"] = followed_.kl;
}

void CutStore::save(StateWriter* out) const {
  out->fields(boundary_, last_update_, unchecked_since_, followed_.tokens, int64_t{followed_.passed}, followed_.checks,
              followed_.backoffs, followed_.overlap, followed_.margin_drift, followed_.kl);
  for (const Layer& layer : layers_) {
    out->fields(layer.q2, layer.k2, layer.v2);
    layer.queries.save(out);
    out->fields(layer.selected.k_order, layer.selected.v_order, layer.streak);
    layer.fidelity.save(out);
    out->value(int64_t{layer.channels != nullptr});
    if (layer.channels != nullptr) out->fields(layer.channels->k_order, layer.channels->v_order);
    for (size_t i = 0; i < layer.exact.size(); ++i) {
      if (layer.cut[i] != nullptr) {
        layer.cut[i]->save(out);
      } else {
        save_page(*context_.pool, *layer.exact[i], out);
      }
    }
  }
}

void CutStore::load(const StageView& view, StateReader* in) {
  in->fields(boundary_, last_update_, unchecked_since_, followed_.tokens);
  followed_.passed = in->value<int64_t>() != 0;
  in->fields(followed_.checks, followed_.backoffs, followed_.overlap, followed_.margin_drift, followed_.kl);
  n_pages_ = view.tail_first / kPageTokens;
  const auto channels = static_cast<size_t>(shape().n_kv_heads * shape().head_dim);
  const auto read_channels = [&](CutChannels* to) {
    *to = {options_.key_channels, options_.value_channels, in->values<uint8_t>(), in->values<uint8_t>()};
    if (to->k_order.empty() && to->v_order.empty()) return;
    expect_channel_order(*in, shape(), to->k_order);
    expect_channel_order(*in, shape(), to->v_order);
  };
  for (Layer& layer : layers_) {
    for (auto* means : {&layer.q2, &layer.k2, &layer.v2}) {
      *means = in->values<float>();
      in->expect(means->empty() || means->size() == channels, "means for each channel");
    }
    in->expect(layer.q2.size() == layer.k2.size() && layer.k2.size() == layer.v2.size(), "means for each channel");
    layer.queries.load(shape(), in);
    read_channels(&layer.selected);
    layer.streak = in->value<int64_t>();
    in->expect(layer.streak == 0 || !layer.selected.k_order.empty(), "no streak without a selection");
    layer.fidelity.load(in);
    if (in->value<int64_t>() != 0) {
      CutChannels cut;
      read_channels(&cut);
      in->expect(!cut.k_order.empty(), "the channels of cut pages");
      layer.channels = std::make_shared<const CutChannels>(std::move(cut));
    }
    for (int64_t i = 0; i < n_pages_; ++i) {
      PageRef exact;
      CutPageRef cut;
      if (layer.channels != nullptr && i > 0) {
        in->expect(in->left() >= cut_bytes(shape(), options_.key_channels, options_.value_channels), "a page");
        cut = std::make_shared<CutPage>(context_.pool, layer.channels, in);
      } else {
        exact = load_page(*context_.pool, in);
      }
      layer.exact.push_back(std::move(exact));
      layer.cut.push_back(std::move(cut));
    }
  }
  count_pages();
  state_.set(state_bytes());
}

}  // namespace smartkv
