#include "cache/policies/calibrated/sensitivity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <xxhash.h>

namespace smartkv {
namespace {

using kernels::ChannelWidths;
using kernels::kPageTokens;
using kernels::kWidths;

struct Choice {
  int bits;
  double left;  // share of the variance that codes of these bits leave
};
// Squared errors of the codes for normal values of variance 1.
constexpr std::array<Choice, 8> kChoices = {
    {{0, 1}, {1, 0.3634}, {2, 0.1175}, {3, 0.0345}, {4, 0.0095}, {5, 0.0022}, {6, 0.00052}, {8, 0.000032}}};

// A page's tokens with two tiers. The wide ones make this share of the page's error, as if all had codes of the same
// width: NOTES.md.
constexpr int64_t kWideTokens = 16;
constexpr double kWideShare = 0.7;
constexpr double kWideFactor = kWideShare * kPageTokens / kWideTokens;
constexpr double kNarrowFactor = (1 - kWideShare) * kPageTokens / (kPageTokens - kWideTokens);

constexpr double kTierScaleBits = 8.0 * kernels::tier_scale_bytes(4) / 16;

// The quads of one side, by falling lambda.
struct Quads {
  std::vector<uint8_t> order;  // channels
  std::vector<double> lambda;  // the mean of each quad
};

Quads sort_quads(const SideSensitivity& side, bool two_tiers) {
  Quads quads;
  quads.order.resize(side.lambda.size());
  std::iota(quads.order.begin(), quads.order.end(), uint8_t{0});
  std::stable_sort(quads.order.begin(), quads.order.end(),
                   [&](uint8_t a, uint8_t b) { return side.lambda[a] > side.lambda[b]; });
  const size_t channels = two_tiers ? 16 : 4;  // that share a width
  for (size_t c = 0; c < quads.order.size(); c += channels) {
    double sum = 0;
    for (size_t i = 0; i < channels; ++i) sum += static_cast<double>(side.lambda[quads.order[c + i]]);
    quads.lambda.insert(quads.lambda.end(), channels / 4, sum / static_cast<double>(channels));
  }
  return quads;
}

// Returns the width that minimizes lambda E(b) + price (b + scale_bits); scale_bits: of a scale, per value.
int best_width(double lambda, double price, double scale_bits) {
  int best = 0;
  double least = lambda;
  for (const auto& [bits, left] : kChoices) {
    const double cost = lambda * left + price * (bits > 0 ? bits + scale_bits : 0);
    if (cost < least) {
      least = cost;
      best = bits;
    }
  }
  return best;
}

kernels::QuadWidths widths_at(const std::vector<double>& lambda, double factor, double price, double scale_bits) {
  kernels::QuadWidths widths = {};
  for (const double of_quad : lambda) {
    const auto run = std::ranges::find(kWidths, best_width(factor * of_quad, price, scale_bits));
    if (run != kWidths.end()) ++widths[static_cast<size_t>(run - kWidths.begin())];
  }
  return widths;
}

// Returns the widths of a side's quads at a price.
ChannelWidths widths_of(const Quads& quads, double price, bool two_tiers) {
  ChannelWidths widths;
  widths.order = quads.order;
  if (two_tiers) {
    widths.quads = widths_at(quads.lambda, kNarrowFactor, price, kTierScaleBits / (kPageTokens - kWideTokens));
    widths.wide_quads = widths_at(quads.lambda, kWideFactor, price, kTierScaleBits / kWideTokens);
  } else {
    widths.quads = widths_at(quads.lambda, 1, price, 8.0 / kPageTokens);
  }
  return widths;
}

// Returns the bits of a value in a page whose quads have the widths of this price, every byte counted.
double bits_at(const std::vector<Quads>& k, const std::vector<Quads>& v, double price, bool two_tiers) {
  int64_t bytes = 0, quads = 0;
  for (size_t head = 0; head < k.size(); ++head) {
    int64_t coded = 0, bits = 0, wide_coded = 0, wide_bits = 0;
    for (const Quads* side : {&k[head], &v[head]}) {
      const ChannelWidths widths = widths_of(*side, price, two_tiers);
      coded += kernels::coded_quads(widths.quads);
      bits += kernels::sum_of_bits(widths.quads);
      wide_coded += kernels::coded_quads(widths.wide_quads);
      wide_bits += kernels::sum_of_bits(widths.wide_quads);
      quads += std::ssize(side->lambda);
    }
    bytes += kernels::calibrated_block_bytes(coded, bits, two_tiers ? kWideTokens : 0, wide_coded, wide_bits);
  }
  return static_cast<double>(8 * bytes) / static_cast<double>(4 * kPageTokens * quads);
}

}  // namespace

uint64_t Sensitivity::fingerprint() const {
  uint64_t hash = 0;
  for (const auto* sides : {&k, &v}) {
    for (const SideSensitivity& side : *sides) {
      for (const auto* values : {&side.lambda, &side.mean}) {
        hash = XXH3_64bits_withSeed(values->data(), values->size() * sizeof(float), hash);
      }
    }
  }
  for (const ImportanceMap& map : importance) {
    hash = XXH3_64bits_withSeed(map.weights.data(), map.weights.size() * sizeof(float), hash);
  }
  return hash;
}

double predicted_error(const SideSensitivity& side, const ChannelWidths& widths) {
  double error = 0;
  size_t column = 0;
  const auto add = [&](int bits, size_t columns) {
    const double left = std::ranges::find(kChoices, bits, &Choice::bits)->left;
    for (const size_t end = column + columns; column < end; ++column) {
      error += left * static_cast<double>(side.lambda[widths.order[column]]);
    }
  };
  for (size_t run = 0; run < kWidths.size(); ++run) add(kWidths[run], 4 * size_t{widths.quads[run]});
  add(0, widths.order.size() - column);
  return error;
}

int64_t ModelWidths::most_page_bytes() const {
  return std::ranges::max_element(layers, {}, &kernels::WidthTable::bytes)->bytes;
}

std::shared_ptr<const ModelWidths> allocate_widths(const Sensitivity& sensitivity, const CacheShape& shape,
                                                   int64_t first_head, double bits, bool two_tiers,
                                                   const std::shared_ptr<const kernels::PageRotations>& rotations,
                                                   const std::shared_ptr<kernels::KvBackend>& backend) {
  std::vector<Quads> k, v;
  for (const SideSensitivity& side : sensitivity.k) k.push_back(sort_quads(side, two_tiers));
  for (const SideSensitivity& side : sensitivity.v) v.push_back(sort_quads(side, two_tiers));
  double low = -60, high = 60;  // log2 of the price
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (bits_at(k, v, std::exp2(middle), two_tiers) > bits ? low : high) = middle;
  }
  const double price = std::exp2(high);
  auto widths = std::make_shared<ModelWidths>();
  widths->fingerprint = sensitivity.fingerprint();
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    kernels::WidthTable& table = widths->layers.emplace_back();
    table.head_dim = shape.head_dim;
    table.wide_tokens = two_tiers ? kWideTokens : 0;
    table.rotations = rotations;
    for (int64_t head = first_head; head < first_head + shape.n_kv_heads; ++head) {
      const auto i = static_cast<size_t>(layer * sensitivity.n_kv_heads + head);
      kernels::HeadWidths& of = table.heads.emplace_back();
      of.k = widths_of(k[i], price, two_tiers);
      of.v = widths_of(v[i], price, two_tiers);
      of.k.mean = sensitivity.k[i].mean;
      of.v.mean = sensitivity.v[i].mean;
    }
    table.lay_out();
    if (backend != nullptr) table.send(backend);
  }
  return widths;
}

}  // namespace smartkv
