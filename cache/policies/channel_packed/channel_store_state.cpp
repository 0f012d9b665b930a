// ChannelStore: the bytes that it holds, and how they are saved.
#include "cache/policies/channel_packed/channel_store.h"

namespace smartkv {

using kernels::kPageTokens;

void ChannelStore::save(StateWriter* out) const {
  out->fields(last_update_, last_check_, backoffs_, checks_);
  for (int64_t l = 0; l < shape().n_layers; ++l) {
    const Layer& layer = layers_[static_cast<size_t>(l)];
    out->fields(layer.q2, layer.k2, static_cast<int64_t>(layer.known));
    layer.queries.save(out);
    out->fields(layer.selected, layer.streak, static_cast<int64_t>(layer.packed));
    layer.fidelity.save(out);
    // For each page: its channel order if it differs from the page before, then its residual.
    ChannelOrder last;
    for (int64_t i = 0; i < n_pages(); ++i) {
      const ChannelOrder& order = page(l, i)->channel_order();
      const bool changes = order == nullptr || last == nullptr ? order != last : *order != *last;
      out->value(static_cast<int64_t>(changes));
      if (changes) out->values(order == nullptr ? std::vector<uint8_t>() : *order);
      last = order;
      const QuantizedPageRef& residual = layer.residual[static_cast<size_t>(i)];
      out->value(static_cast<int64_t>(residual != nullptr));
      if (residual != nullptr) residual->save(out);
    }
    if (layer.packed) out->values(*layer.order);
  }
  PageStore::save(out);
}

void ChannelStore::load(const StageView& view, StateReader* in) {
  in->fields(last_update_, last_check_, backoffs_, checks_);
  for (Layer& layer : layers_) load_layer(view, in, &layer);
  PageStore::load(view, in);
  for (int64_t l = 0; l < shape().n_layers; ++l) {
    Layer& layer = layers_[static_cast<size_t>(l)];
    layer.loading.clear();
    for (int64_t i = 0; i < n_pages(); ++i) {
      const QuantizedPageRef& residual = layer.residual[static_cast<size_t>(i)];
      in->expect(
          residual == nullptr || (page(l, i)->layout() == layouts_.packed && residual->layout() == layouts_.residual),
          "a packed page with its residual");
    }
  }
  count_residuals();
  state_.set(state_bytes());
}

void ChannelStore::load_layer(const StageView& view, StateReader* in, Layer* layer) const {
  const auto channels = static_cast<size_t>(shape().n_kv_heads * shape().head_dim);
  const auto order_of = [&](const std::vector<uint8_t>& order) {
    expect_channel_order(*in, shape(), order);
    return std::make_shared<const std::vector<uint8_t>>(order);
  };
  in->fields(layer->q2, layer->k2);
  layer->known = in->value<int64_t>() != 0;
  in->expect(layer->q2.size() == layer->k2.size() && (layer->q2.empty() ? !layer->known : layer->q2.size() == channels),
             "means for each channel");
  layer->queries.load(shape(), in);
  layer->selected = in->values<uint8_t>();
  if (!layer->selected.empty()) order_of(layer->selected);
  layer->streak = in->value<int64_t>();
  layer->packed = in->value<int64_t>() != 0;
  layer->fidelity.load(in);
  ChannelOrder order, turned;
  for (int64_t i = 0; i < view.tail_first / kPageTokens; ++i) {
    if (in->value<int64_t>() != 0) {
      const auto found = in->values<uint8_t>();
      order = found.empty() ? nullptr : order_of(found);
      turned = found.empty() ? nullptr : residual_order(found);
    }
    layer->loading.push_back(order);
    const bool packed = in->value<int64_t>() != 0;
    in->expect(!packed || turned != nullptr, "a channel order for a packed page");
    layer->residual.push_back(packed ? std::make_shared<QuantizedPage>(context().pool, turned, in) : nullptr);
  }
  if (!layer->packed) return;
  layer->order = order_of(in->values<uint8_t>());
  layer->residual_order = residual_order(*layer->order);
}

void ChannelStore::count_residuals() {
  residual_bytes_ = 0;
  for (const Layer& layer : layers_) residual_bytes_ += bytes_of(layer.residual);
}

int64_t ChannelStore::state_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += static_cast<int64_t>((layer.q2.size() + layer.k2.size()) * sizeof(float) + layer.selected.size()) +
             layer.queries.bytes();
    if (layer.order != nullptr) bytes += static_cast<int64_t>(layer.order->size() + layer.residual_order->size());
  }
  return bytes;
}

void ChannelStore::add_stats(const StageView& view, CacheStats* stats) const {
  PageStore::add_stats(view, stats);
  stats->bytes += state_.bytes() + residual_bytes_;
  if (!view.may_share) return;
  for (const Layer& layer : layers_) stats->shared_bytes += shared_bytes_of(layer.residual);
}

void ChannelStore::add_details(std::map<std::string, double>* details) const {
  PageStore::add_details(details);
  double packed = 0;
  std::vector<Fidelity> checks;
  for (const Layer& layer : layers_) {
    packed += layer.packed ? 1 : 0;
    checks.push_back(layer.fidelity);
  }
  (*details)["packed_layers"] = packed / static_cast<double>(shape().n_layers);
  (*details)["channel_backoffs"] = static_cast<double>(backoffs_);
  (*details)["channel_checks"] = static_cast<double>(checks_);
  smartkv::add_details(checks, details);
}

}  // namespace smartkv
