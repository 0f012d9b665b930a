#include "cache/policies/mixed_precision/mixed_store.h"

#include <cmath>
#include <numeric>

#include "kernels/pending_results.h"

namespace smartkv {

using kernels::kPageTokens;
using kernels::QuantizedLayout;

namespace {

// Forecasts of a boundary that become samples, spread over layers and pages.
constexpr int64_t kSamples = 128;
constexpr int64_t kMostPending = 2 * kSamples;
// Share of the keys' error that the softmax does not cancel. Measured, see NOTES.md.
constexpr double kKeyShare = 0.3;
// Measured, see NOTES.md: pages at the end that stay in 8 bits, pages before the new ones that may still be narrowed,
// how many of them for each new page, and the least saving, as 1 / kLeastSaving of a page's bytes.
constexpr int64_t kRecentPages = 1;
constexpr int64_t kYoungPages = 8;
constexpr int64_t kNarrowedPerNewPage = 2;
constexpr int64_t kLeastSaving = 16;
constexpr int64_t kAll = std::numeric_limits<int64_t>::max() >> 32;
constexpr int64_t kSinks = 4;  // First tokens, with keys unlike all others.
// Share of the layer's mean that is added to each importance: a page without attention may still be needed.
constexpr double kFloor = 0.03;

int64_t pages_in_8_bits(int64_t pages) { return std::min(pages, 1 + kRecentPages); }

// Returns the bytes of the network, its history and the pending forecasts.
int64_t forecast_bytes(const ForecastOptions& options) {
  if (!options.enabled) return 0;
  return ImportanceForecast::bytes(options) + kMostPending * static_cast<int64_t>(sizeof(PendingForecast));
}

float log_of(float importance) { return std::log(importance + 1e-6f); }

// Returns how much an error in each token's value matters: the token's share of the page's attention, times the square
// of its range. v_range: f32 [kPageTokens]. mass: that of the page's tokens, or null.
std::array<double, kPageTokens> value_worth(const float* v_range, const float* mass) {
  const double total = mass == nullptr ? 0.0 : std::accumulate(mass, mass + kPageTokens, 0.0);
  std::array<double, kPageTokens> worth{};
  for (int64_t t = 0; t < kPageTokens; ++t) {
    // The page's mean stands in for attention that the probes did not see.
    const double share = total > 0 ? 0.5 * mass[t] / total + 0.5 / kPageTokens : 1.0 / kPageTokens;
    const double range = v_range[t];
    worth[static_cast<size_t>(t)] = share * (range * range);
  }
  return worth;
}

// Adds the sensitivities of one KV head's channels, in the order of `channels`, to their quads. k_range: f32 [dim]. q2:
// f32 [dim], sum of q^2 over `probes` probes. value_norm: mean of |v|^2.
void add_key_sensitivity(const float* k_range, int64_t dim, const uint8_t* channels, const float* q2, double probes,
                         double value_norm, std::vector<double>* quads) {
  for (int64_t i = 0; i < dim; ++i) {
    const int64_t d = channels[i];
    const double range2 = static_cast<double>(k_range[d]) * k_range[d];
    (*quads)[static_cast<size_t>(i / 4)] +=
        kKeyShare * q2[d] / probes / static_cast<double>(dim) * range2 / 12 * value_norm;
  }
}

}  // namespace

int64_t page_state_bytes(const CacheShape& shape) {
  return static_cast<int64_t>(sizeof(MixedPageState)) +
         (shape.head_dim + kPageTokens) / 4 * static_cast<int64_t>(sizeof(LogSensitivity));
}

int64_t mixed_budget(const CacheShape& shape, const MixedOptions& options, int64_t tokens, int64_t pages) {
  const auto horizon = static_cast<double>(std::max(tokens, options.horizon));
  const double values = static_cast<double>(2 * shape.n_layers * shape.n_kv_heads * shape.head_dim);
  const double window = static_cast<double>(options.window);
  const double coded = std::max(horizon - window, (2.0 + kRecentPages) * kPageTokens);
  const double widest = static_cast<double>(shape.n_layers * quantized_bytes(shape, widest_layout(shape)));
  // Bytes of the statistics, which count like everything else.
  double state =
      static_cast<double>(shape.n_layers * shape.n_kv_heads * shape.head_dim) * (sizeof(float) + sizeof(uint8_t));
  state += static_cast<double>(forecast_bytes(options.forecast));
  if (options.bytes > 0) {
    const int64_t dense = dense_bytes(shape, options.window + options.prompt_stride);
    return options.bytes - dense - static_cast<int64_t>(state) - pages * shape.n_layers * page_state_bytes(shape);
  }
  // The first and the newest page are in 8 bits. The others have equal shares of the bytes that these leave at the
  // horizon.
  const auto in_8_bits = static_cast<double>(pages_in_8_bits(pages));
  double bytes = options.bits / 8 * values * horizon - static_cast<double>(dense_bytes(shape, options.window)) - state;
  bytes -=
      (1 + kRecentPages) * widest + coded / kPageTokens * static_cast<double>(shape.n_layers * page_state_bytes(shape));
  const double of_a_page = bytes / (coded / kPageTokens - 1 - kRecentPages);
  return static_cast<int64_t>(in_8_bits * widest + of_a_page * (static_cast<double>(pages) - in_8_bits));
}

int64_t least_bytes(const CacheShape& shape, const MixedOptions& options, int64_t pages) {
  const auto narrow = [&](int64_t columns) {
    if (options.least_bits > 0) return kernels::uniform_runs(columns, static_cast<int>(options.least_bits));
    kernels::CodeRuns none;
    none.dropped = static_cast<uint8_t>(columns / 4);
    return none;
  };
  const QuantizedLayout narrowest{narrow(shape.head_dim), narrow(kPageTokens)};
  const int64_t in_8_bits = pages_in_8_bits(pages);
  return shape.n_layers * (in_8_bits * quantized_bytes(shape, widest_layout(shape)) +
                           (pages - in_8_bits) * quantized_bytes(shape, narrowest));
}

MixedStore::MixedStore(const PolicyContext& context, const MixedOptions& options)
    : PageStore(context),
      options_(options),
      whole_(context.whole_shape()),
      layers_(static_cast<size_t>(context.shape.n_layers)),
      layer_importance_(layers_.size(), 0.0),
      state_(context.pool) {
  const auto channels = static_cast<size_t>(context.shape.n_kv_heads * context.shape.head_dim);
  for (Layer& layer : layers_) layer.q2.assign(channels, 0.0f);
  if (options.forecast.enabled) forecast_.emplace(options.forecast);
  state_.set(state_bytes());
}

void MixedStore::observe(const StageView& view, int64_t layer, const StoreProbe& probe) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  const int64_t group = static_cast<int64_t>(probe.q.size()) / (heads * dim);
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t d = 0; d < dim; ++d) {
        const float q = probe.q[static_cast<size_t>((head * group + g) * dim + d)];
        state.q2[static_cast<size_t>(head * dim + d)] += q * q;
      }
    }
  }
  const bool first = state.tail_mass.empty();
  ++state.probes;
  ++state.q2_probes;
  const int64_t tail_size = view.next_boundary - view.tail_first;
  state.tail_mass.resize(static_cast<size_t>(heads * tail_size), 0.0f);
  for (int64_t head = 0; head < heads; ++head) {
    const float* mass = probe.mass + head * probe.stride;
    for (int64_t page = 0; page < n_pages(); ++page) {
      const float* of_page = mass + probe.entry + page * kPageTokens;
      float sum = 0;
      for (int64_t i = 0; i < kPageTokens; ++i) sum += of_page[i];
      state.pages[static_cast<size_t>(page)].mass += sum;
    }
    float* tail = state.tail_mass.data() + head * tail_size;
    for (int64_t i = 0; i < probe.n_tail; ++i) tail[i] += mass[probe.tail + i];
  }
  if (first) state_.set(state_bytes());
}

void MixedStore::plan(const StageView& view, int64_t made) {
  tokens_ = view.tokens;
  first_new_ = n_pages();
  new_pages_.assign(static_cast<size_t>(shape().n_layers * made), {});
  std::vector<std::vector<float>> first_ranges(layers_.size());
  std::vector<PageStatistics> figures(new_pages_.size());
  kernels::PendingResults results(*context().pool->backend());
  context().for_each(shape().n_layers * made, [&](int64_t task) {
    const int64_t layer = task / made, i = first_new_ + task % made;
    const DenseLayer& tail = view.tail[static_cast<size_t>(layer)];
    if (i == 0) ask_ranges(tail, &first_ranges[static_cast<size_t>(layer)]);
    ask_stats(tail, i, &figures[static_cast<size_t>(task)]);
  });
  results.wait();
  context().for_each(shape().n_layers, [&](int64_t layer) {
    Layer& state = layers_[static_cast<size_t>(layer)];
    if (state.channel_order == nullptr) order_channels(layer, first_ranges[static_cast<size_t>(layer)]);
  });
  context().for_each(shape().n_layers * made, [&](int64_t task) {
    page_stats(task / made, first_new_ + task % made, figures[static_cast<size_t>(task)],
               &new_pages_[static_cast<size_t>(task)]);
  });
  share();
  if (forecast_) learn_forecast();
  average_importance();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    Layer& state = layers_[layer];
    double norms = state.value_norm * static_cast<double>(first_new_), importance = 0;
    const auto probes = static_cast<double>(std::max<int64_t>(1, state.probes));
    for (size_t i = 0; i < static_cast<size_t>(made); ++i) {
      const NewPage& found = new_pages_[layer * static_cast<size_t>(made) + i];
      norms += found.norm;
      MixedPageState& page = state.pages.emplace_back();
      page.layout = widest_layout(shape());
      page.importance = static_cast<float>(found.mass / probes);
      page.quads.reserve(found.quads.size());
      for (const double s : found.quads) page.quads.push_back(log_sensitivity(s));
    }
    state.value_norm = norms / static_cast<double>(state.pages.size());
    for (const MixedPageState& page : state.pages) importance += page.importance;
    layer_importance_[layer] = importance / static_cast<double>(state.pages.size());
    // The rest of the tail starts over, because only attention from a distance counts.
    std::vector<float>().swap(state.tail_mass);
    state.probes = 0;
  }
  if (forecast_) forecast();
  if (first_new_ + made > 1) fit(mixed_budget(whole_, options_, tokens_, first_new_ + made));
}

void MixedStore::share() {
  if (context().ranks() == 1) return;
  std::vector<double> sums;
  const auto for_each_sum = [&](const auto& visit) {
    for (Layer& layer : layers_) {
      for (MixedPageState& page : layer.pages) visit(&page.mass);
    }
    for (NewPage& page : new_pages_) {
      visit(&page.norm);
      visit(&page.mass);
      for (double& s : page.quads) visit(&s);
    }
  };
  for_each_sum([&](const auto* value) { sums.push_back(*value); });
  context().sum(sums);
  auto at = sums.begin();
  for_each_sum([&]<typename T>(T* value) { *value = static_cast<T>(*at++); });
}

void MixedStore::average_importance() {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const auto probes = static_cast<float>(std::max<int64_t>(1, layers_[layer].probes));
    for (MixedPageState& page : layers_[layer].pages) {
      const float seen = page.mass / probes;
      page.age = seen > layer_importance_[layer] ? 0 : page.age + 1;
      page.previous = page.importance;
      page.importance =
          static_cast<float>(options_.decay) * page.importance + static_cast<float>(1 - options_.decay) * seen;
      page.mass = 0;
    }
  }
}

void MixedStore::ask_ranges(const DenseLayer& tail, std::vector<float>* k_range) const {
  k_range->resize(static_cast<size_t>(shape().n_kv_heads * shape().head_dim));
  kernels::PageStats job{tail_page(tail, 0), shape().n_kv_heads, kSinks, kPageTokens - kSinks};
  job.k_range = k_range->data();
  context().pool->backend()->page_stats(shape().type, shape().head_dim, {&job, 1});
}

void MixedStore::ask_stats(const DenseLayer& tail, int64_t i, PageStatistics* figures) const {
  const auto heads = static_cast<size_t>(shape().n_kv_heads);
  figures->k_range.resize(heads * static_cast<size_t>(shape().head_dim));
  figures->v_range.resize(heads * kPageTokens);
  figures->v_squares.resize(heads);
  kernels::PageStats job{tail_page(tail, i), shape().n_kv_heads, 0, kPageTokens};
  job.k_range = figures->k_range.data();
  job.v_range = figures->v_range.data();
  job.v_squares = figures->v_squares.data();
  context().pool->backend()->page_stats(shape().type, shape().head_dim, {&job, 1});
}

// Sorts the channels by E[q^2] range(k)^2, from the statistics up to the first page, so that the channels of a quad
// have similar sensitivities.
void MixedStore::order_channels(int64_t layer, std::span<const float> k_range) {
  Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  state.channel_order = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(heads * dim));
  for (int64_t head = 0; head < heads; ++head) {
    std::vector<float> s(static_cast<size_t>(dim));
    for (size_t d = 0; d < s.size(); ++d) {
      const size_t at = static_cast<size_t>(head * dim) + d;
      s[d] = state.q2[at] * k_range[at] * k_range[at];
    }
    const auto order = state.channel_order->begin() + head * dim;
    std::iota(order, order + dim, uint8_t{0});
    std::stable_sort(order, order + dim, [&](uint8_t a, uint8_t b) { return s[a] > s[b]; });
  }
}

void MixedStore::page_stats(int64_t layer, int64_t i, const PageStatistics& figures, NewPage* found) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  const int64_t tail_size = static_cast<int64_t>(state.tail_mass.size()) / heads;
  const auto q2_probes = static_cast<double>(std::max<int64_t>(1, state.q2_probes));

  // Sort the tokens of each KV head by worth, so that the tokens of a quad are alike. Attention does not depend on
  // their order.
  found->order.resize(static_cast<size_t>(heads * kPageTokens));
  std::vector<double> k_quads(static_cast<size_t>(dim / 4)), v_quads(static_cast<size_t>(kPageTokens / 4));
  for (int64_t head = 0; head < heads; ++head) {
    const float* head_mass =
        tail_size > 0 ? state.tail_mass.data() + head * tail_size + (i - first_new_) * kPageTokens : nullptr;
    const std::array<double, kPageTokens> worth = value_worth(figures.v_range.data() + head * kPageTokens, head_mass);
    uint8_t* order = found->order.data() + head * kPageTokens;
    std::iota(order, order + kPageTokens, uint8_t{0});
    std::stable_sort(order, order + kPageTokens, [&](uint8_t a, uint8_t b) { return worth[a] > worth[b]; });
    for (int64_t t = 0; t < kPageTokens; ++t) {
      v_quads[static_cast<size_t>(t / 4)] += worth[order[t]] * static_cast<double>(dim) / 12;
    }
    const double head_norm = figures.v_squares[static_cast<size_t>(head)] / kPageTokens;
    add_key_sensitivity(figures.k_range.data() + head * dim, dim, state.channel_order->data() + head * dim,
                        state.q2.data() + head * dim, q2_probes, head_norm, &k_quads);
    if (head_mass != nullptr) found->mass += std::accumulate(head_mass, head_mass + kPageTokens, 0.0);
    found->norm += head_norm;
  }
  found->quads = std::move(k_quads);
  found->quads.insert(found->quads.end(), v_quads.begin(), v_quads.end());
}

QuantizedPageRef MixedStore::pack(int64_t layer, int64_t i, std::span<const kernels::TokenPlace> tokens) const {
  const Layer& state = layers_[static_cast<size_t>(layer)];
  const int64_t made = static_cast<int64_t>(state.pages.size()) - first_new_;
  const std::vector<uint8_t>& order = new_pages_[static_cast<size_t>(layer * made + i - first_new_)].order;
  std::vector<kernels::TokenPlace> sorted;
  for (size_t row = 0; row < tokens.size(); ++row)
    sorted.push_back(tokens[row / kPageTokens * kPageTokens + order[row]]);
  return std::make_shared<QuantizedPage>(context().pool, state.pages[static_cast<size_t>(i)].layout,
                                         state.channel_order, kernels::PageSource{sorted});
}

int32_t MixedStore::shift(int64_t layer, const MixedPageState& page) const {
  const double mean = layer_importance_[static_cast<size_t>(layer)], blend = forecast_ ? options_.forecast.blend : 0.0;
  double importance = (1 - blend) * page.importance + blend * page.forecast + kFloor * mean;
  importance /= std::max(1e-20, layers_[static_cast<size_t>(layer)].value_norm);
  return log_sensitivity(importance);
}

QuantizedLayout MixedStore::target(int64_t layer, int64_t i, int32_t price, int64_t least_saving) const {
  const MixedPageState& state = layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(i)];
  const QuantizedLayout& now = state.layout;
  if (i == 0 || i >= n_pages_planned() - kRecentPages) return now;
  const std::span quads(state.quads);
  const auto split = static_cast<size_t>(shape().head_dim / 4);
  const int32_t by = shift(layer, state);
  const QuantizedLayout wanted{narrower(now.k, runs_at(quads.first(split), by, price, options_.least_bits)),
                               narrower(now.v, runs_at(quads.subspan(split), by, price, options_.least_bits))};
  if (i >= first_new_) return wanted;
  const int64_t bytes = quantized_bytes(whole_, now);
  return (bytes - quantized_bytes(whole_, wanted)) * least_saving < bytes ? now : wanted;
}

int64_t MixedStore::bytes_at(int32_t price, const Narrowing& narrowing, std::vector<Change>* changes) const {
  std::vector<std::vector<Change>> of_layers(layers_.size());
  std::vector<int64_t> bytes(layers_.size(), 0);
  context().for_each(shape().n_layers, [&](int64_t layer) {
    for (int64_t i = narrowing.first; i < n_pages_planned(); ++i) {
      const int64_t wanted = quantized_bytes(whole_, target(layer, i, price, narrowing.least_saving));
      const MixedPageState& state = layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(i)];
      const int64_t now = i < first_new_ ? quantized_bytes(whole_, state.layout) : wanted;
      bytes[static_cast<size_t>(layer)] += now;
      if (wanted < now) of_layers[static_cast<size_t>(layer)].push_back({layer, i, now - wanted});
    }
  });
  changes->clear();
  for (const std::vector<Change>& of : of_layers) changes->insert(changes->end(), of.begin(), of.end());
  if (static_cast<int64_t>(changes->size()) > narrowing.most_pages) {
    const auto end = changes->begin() + narrowing.most_pages;
    std::nth_element(changes->begin(), end, changes->end(), [](const Change& a, const Change& b) {
      return a.saved != b.saved ? a.saved > b.saved : std::tie(a.layer, a.page) < std::tie(b.layer, b.page);
    });
    changes->erase(end, changes->end());
  }
  int64_t sum = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  for (const Change& change : *changes) sum -= change.saved;
  return sum;
}

// In a budget that grows with the sequence, few pages are requantized at a time: it costs time, and each time some
// precision.
int64_t MixedStore::most_narrowed(int64_t made) const {
  return options_.bytes > 0 ? kAll : std::min(kNarrowedPerNewPage * made, kYoungPages) * shape().n_layers;
}

// In a budget that grows with the sequence, the pages before the youngest stay as they are, so that sequences with a
// common prefix share them for good.
void MixedStore::fit(int64_t budget) {
  constexpr int32_t kHighest = 64 * 256;
  const int64_t made = n_pages_planned() - first_new_;
  Narrowing narrowing{options_.bytes > 0 ? 0 : std::max<int64_t>(0, first_new_ - kYoungPages), kLeastSaving,
                      most_narrowed(made)};
  budget -= bytes_between(whole_, 0, narrowing.first);
  std::vector<Change> changes;
  if (bytes_at(kHighest, narrowing, &changes) > budget) narrowing.least_saving = narrowing.most_pages = kAll;
  int32_t low = -kHighest, high = kHighest;  // Bytes fall as the price rises.
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (bytes_at(middle, narrowing, &changes) <= budget) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  bytes_at(low, narrowing, &changes);
  for (const Change& change : changes) {
    layers_[static_cast<size_t>(change.layer)].pages[static_cast<size_t>(change.page)].layout =
        target(change.layer, change.page, low, narrowing.least_saving);
  }
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    std::vector<MixedPageState>& pages = layers_[static_cast<size_t>(layer)].pages;
    for (int64_t i = first_new_; i < n_pages_planned(); ++i) {
      pages[static_cast<size_t>(i)].layout = target(layer, i, low, narrowing.least_saving);
    }
  }
  context().for_each(static_cast<int64_t>(changes.size()), [&](int64_t c) {
    const auto& [layer, i, saved] = changes[static_cast<size_t>(c)];
    const QuantizedPageRef& old = page(layer, i);
    const kernels::KvSegment codes = old->segment();
    const QuantizedLayout& layout = layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(i)].layout;
    set_page(
        layer, i,
        std::make_shared<QuantizedPage>(context().pool, layout, old->channel_order(), kernels::PageSource{{}, &codes}));
  });
}

void MixedStore::end_boundary() {
  std::vector<NewPage>().swap(new_pages_);
  state_.set(state_bytes());
}

StoreBytes MixedStore::bytes_at(const StageView& view, const Moment& then) const {
  const int64_t n = then.left / kPageTokens, made = n - n_pages(), n_layers = shape().n_layers;
  const int64_t channels = shape().n_kv_heads * shape().head_dim, widest = page_bytes(0);
  const int64_t mass = then.probes(options_.probes) > 0 ? shape().n_kv_heads * (then.next - then.left) : 0;
  const int64_t order = n > 0 ? channels : 0, values = (channels + mass) * static_cast<int64_t>(sizeof(float));
  StoreBytes most{.pages = bytes(), .state = forecast_bytes(options_.forecast)};
  most.state += n_layers * (values + order + n * page_state_bytes(shape()));
  if (made == 0) return most;
  // Pages cannot be narrower than least_bits, nor wider than 8 bits. This process's KV heads have their share of each.
  const int64_t budget = std::max(least_bytes(whole_, options_, n), mixed_budget(whole_, options_, then.tokens, n));
  most.pages = std::min(most.pages + n_layers * made * widest, budget * shape().n_kv_heads / whole_.n_kv_heads);
  // A page is narrowed by making another one; a shared page stays.
  const int64_t narrowed = std::min(most_narrowed(made), n_pages() * n_layers) * widest;
  const int64_t copies = view.may_share ? std::min(shared_bytes(), narrowed) : 0;
  most.pages += copies;
  most.working = context().workers() * widest;
  most.prepared = most.working + copies;
  most.take.assign(layers_.size(), then.taken / kPageTokens * widest);
  return most;
}

void MixedStore::save(StateWriter* out) const {
  out->fields(tokens_, layer_importance_);
  for (const Layer& layer : layers_) {
    out->fields(layer.q2, layer.q2_probes, layer.probes);
    out->values(layer.channel_order == nullptr ? std::vector<uint8_t>() : *layer.channel_order);
    out->fields(layer.tail_mass, layer.value_norm);
    for (const MixedPageState& page : layer.pages) {
      out->fields(page.importance, page.previous, page.age, page.forecast, page.mass, page.quads);
    }
  }
  PageStore::save(out);
  if (!forecast_) return;
  forecast_->save(out);
  out->fields(forecast_error_, average_error_, forecasts_, static_cast<int64_t>(pending_.size()));
  for (const PendingForecast& sample : pending_) {
    out->fields(sample.layer, sample.page);
    for (const float feature : sample.features) out->value(feature);
    out->fields(sample.predicted, sample.average);
  }
}

void MixedStore::load(const StageView& view, StateReader* in) {
  in->fields(tokens_, layer_importance_);
  in->expect(layer_importance_.size() == layers_.size(), "an importance for each layer");
  for (Layer& layer : layers_) load_layer(view, in, &layer);
  PageStore::load(view, in);
  for (int64_t layer = 0; layer < shape().n_layers; ++layer) {
    for (int64_t i = 0; i < n_pages(); ++i) {
      layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(i)].layout = page(layer, i)->layout();
    }
  }
  if (forecast_) load_forecast(view, in);
  state_.set(state_bytes());
}

void MixedStore::load_layer(const StageView& view, StateReader* in, Layer* layer) const {
  const int64_t heads = shape().n_kv_heads, dim = shape().head_dim;
  in->fields(layer->q2, layer->q2_probes, layer->probes);
  auto order = in->values<uint8_t>();
  in->fields(layer->tail_mass, layer->value_norm);
  in->expect(static_cast<int64_t>(layer->q2.size()) == heads * dim, "E[q^2] for each channel");
  if (view.tail_first > 0) {
    expect_channel_order(*in, shape(), order);
    layer->channel_order = std::make_shared<std::vector<uint8_t>>(std::move(order));
  } else {
    in->expect(order.empty(), "no channel order without a page");
  }
  in->expect(layer->tail_mass.empty() ||
                 static_cast<int64_t>(layer->tail_mass.size()) == heads * (view.next_boundary - view.tail_first),
             "a mass for each tail token");
  layer->pages.resize(static_cast<size_t>(view.tail_first / kPageTokens));
  for (MixedPageState& page : layer->pages) {
    in->fields(page.importance, page.previous, page.age, page.forecast, page.mass, page.quads);
    in->expect(static_cast<int64_t>(page.quads.size()) == (dim + kPageTokens) / 4, "a sensitivity for each quad");
  }
}

void MixedStore::load_forecast(const StageView& view, StateReader* in) {
  forecast_->load(in);
  in->fields(forecast_error_, average_error_, forecasts_);
  const auto pending = in->value<int64_t>();
  in->expect(pending >= 0 && pending <= kMostPending, "a count of forecasts");
  pending_.resize(static_cast<size_t>(pending));
  for (PendingForecast& sample : pending_) {
    in->fields(sample.layer, sample.page);
    in->expect(sample.layer >= 0 && sample.layer < shape().n_layers && sample.page >= 0 &&
                   sample.page < view.tail_first / kPageTokens,
               "a forecast for an existing page");
    for (float& feature : sample.features) feature = in->value<float>();
    in->fields(sample.predicted, sample.average);
  }
}

void MixedStore::add_stats(const StageView& view, CacheStats* stats) const {
  PageStore::add_stats(view, stats);
  stats->bytes += state_.bytes();
}

ImportanceForecast::Features MixedStore::features(int64_t layer, int64_t i) const {
  const MixedPageState& state = layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(i)];
  const QuantizedLayout& layout = state.layout;
  const auto count = static_cast<float>(layers_[0].pages.size()),
             step = static_cast<float>(tokens_) / static_cast<float>(kPageTokens);
  return {log_of(state.importance),
          log_of(std::abs(state.importance - state.previous)),
          state.age / (state.age + 8),
          static_cast<float>(mean_bits(layout.k) + mean_bits(layout.v)) / 16,
          log_of(static_cast<float>(layer_importance_[static_cast<size_t>(layer)])),
          0.5f * (static_cast<float>(i) / count + step / (step + 64))};
}

void MixedStore::learn_forecast() {
  for (const PendingForecast& sample : pending_) {
    const MixedPageState& state = layers_[static_cast<size_t>(sample.layer)].pages[static_cast<size_t>(sample.page)];
    const auto probes = static_cast<float>(std::max<int64_t>(1, layers_[static_cast<size_t>(sample.layer)].probes));
    const float truth = log_of(state.mass / probes);
    forecast_error_ += (sample.predicted - truth) * (sample.predicted - truth);
    average_error_ += (sample.average - truth) * (sample.average - truth);
    ++forecasts_;
    forecast_->learn(sample.features, truth);
  }
  pending_.clear();
}

void MixedStore::forecast() {
  const auto pages = static_cast<int64_t>(layers_[0].pages.size());
  const int64_t count = shape().n_layers * pages, stride = std::max<int64_t>(1, count / kSamples);
  for (int64_t c = 0; c < count; ++c) {
    const int64_t layer = c % shape().n_layers, i = c / shape().n_layers;
    MixedPageState& state = layers_[static_cast<size_t>(layer)].pages[static_cast<size_t>(i)];
    const ImportanceForecast::Features given = features(layer, i);
    const float predicted = forecast_->predict(given);
    state.forecast = std::exp(std::clamp(predicted, -20.0f, 5.0f));
    if ((c + pages) % stride == 0) pending_.push_back({layer, i, given, predicted, log_of(state.importance)});
  }
}

void MixedStore::add_details(std::map<std::string, double>* details) const {
  PageStore::add_details(details);
  if (!forecast_) return;
  if (const std::optional<double> loss = forecast_->last_loss()) (*details)["forecast_last_loss"] = *loss;
  (*details)["forecast_pending"] = static_cast<double>(pending_.size());
  if (forecasts_ == 0) return;
  (*details)["forecast_rms_error"] = std::sqrt(forecast_error_ / static_cast<double>(forecasts_));
  (*details)["average_rms_error"] = std::sqrt(average_error_ / static_cast<double>(forecasts_));
}

int64_t MixedStore::bytes_between(const CacheShape& shape, int64_t first, int64_t end) const {
  int64_t sum = 0;
  for (const Layer& layer : layers_) {
    for (int64_t i = std::max<int64_t>(0, first); i < end; ++i)
      sum += quantized_bytes(shape, layer.pages[static_cast<size_t>(i)].layout);
  }
  return sum;
}

// Counts the pages that will not be narrowed, and half of the pages that may be: after 2,000 tokens, the next 250
// replace two fifths of their bytes. With `bytes` all pages may be narrowed, but few are once a prompt is computed.
int64_t MixedStore::stable_bytes() const {
  if (options_.bytes > 0) return bytes();
  return bytes() - bytes_between(shape(), n_pages() - kYoungPages, n_pages()) / 2;
}

int64_t MixedStore::state_bytes() const {
  int64_t bytes = forecast_bytes(options_.forecast);
  for (const Layer& layer : layers_) {
    bytes += static_cast<int64_t>((layer.q2.size() + layer.tail_mass.capacity()) * sizeof(float));
    if (layer.channel_order != nullptr) bytes += static_cast<int64_t>(layer.channel_order->size());
    bytes += static_cast<int64_t>(layer.pages.size()) * page_state_bytes(shape());
  }
  return bytes;
}

}  // namespace smartkv
