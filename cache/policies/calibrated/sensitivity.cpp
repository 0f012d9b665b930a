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

constexpr double kScaleBits = 8.0 / kPageTokens;  // of a value whose channel has codes

struct Choice {
  int bits;
  double left;  // share of the variance that codes of these bits leave
};
// Squared errors of the codes for normal values of variance 1.
constexpr std::array<Choice, 8> kChoices = {
    {{0, 1}, {1, 0.3634}, {2, 0.1175}, {3, 0.0345}, {4, 0.0095}, {5, 0.0022}, {6, 0.00052}, {8, 0.000032}}};

// The quads of one side, by falling lambda.
struct Quads {
  std::vector<uint8_t> order;  // channels
  std::vector<double> lambda;  // the mean of each quad
};

Quads sort_quads(const SideSensitivity& side) {
  Quads quads;
  quads.order.resize(side.lambda.size());
  std::iota(quads.order.begin(), quads.order.end(), uint8_t{0});
  std::stable_sort(quads.order.begin(), quads.order.end(),
                   [&](uint8_t a, uint8_t b) { return side.lambda[a] > side.lambda[b]; });
  for (size_t c = 0; c < quads.order.size(); c += 4) {
    double sum = 0;
    for (size_t i = 0; i < 4; ++i) sum += static_cast<double>(side.lambda[quads.order[c + i]]);
    quads.lambda.push_back(sum / 4);
  }
  return quads;
}

// Returns the width that minimizes lambda E(b) + price (b + the bits of a scale).
int best_width(double lambda, double price) {
  int best = 0;
  double least = lambda;
  for (const auto& [bits, left] : kChoices) {
    const double cost = lambda * left + price * (bits > 0 ? bits + kScaleBits : 0);
    if (cost < least) {
      least = cost;
      best = bits;
    }
  }
  return best;
}

// Returns the bits of a value in a page whose quads have the widths of this price, every byte counted.
double bits_at(const std::vector<Quads>& k, const std::vector<Quads>& v, double price) {
  int64_t bytes = 0, quads = 0;
  for (size_t head = 0; head < k.size(); ++head) {
    int64_t coded = 0, bits = 0;
    for (const Quads* side : {&k[head], &v[head]}) {
      for (const double lambda : side->lambda) {
        const int width = best_width(lambda, price);
        coded += width > 0 ? 1 : 0;
        bits += width;
      }
      quads += std::ssize(side->lambda);
    }
    bytes += kernels::calibrated_block_bytes(coded, bits);
  }
  return static_cast<double>(8 * bytes) / static_cast<double>(4 * kPageTokens * quads);
}

ChannelWidths widths_of(const SideSensitivity& side, const Quads& quads, double price) {
  ChannelWidths widths{.order = quads.order, .mean = side.mean};
  for (const double lambda : quads.lambda) {
    const auto run = std::find(kWidths.begin(), kWidths.end(), best_width(lambda, price));
    if (run != kWidths.end()) ++widths.quads[static_cast<size_t>(run - kWidths.begin())];
  }
  return widths;
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
                                                   int64_t first_head, double bits,
                                                   const std::shared_ptr<const kernels::PageRotations>& rotations,
                                                   const std::shared_ptr<kernels::KvBackend>& backend) {
  std::vector<Quads> k, v;
  for (const SideSensitivity& side : sensitivity.k) k.push_back(sort_quads(side));
  for (const SideSensitivity& side : sensitivity.v) v.push_back(sort_quads(side));
  double low = -60, high = 60;  // log2 of the price
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (bits_at(k, v, std::exp2(middle)) > bits ? low : high) = middle;
  }
  const double price = std::exp2(high);
  auto widths = std::make_shared<ModelWidths>();
  widths->fingerprint = sensitivity.fingerprint();
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    kernels::WidthTable& table = widths->layers.emplace_back();
    table.head_dim = shape.head_dim;
    table.rotations = rotations;
    for (int64_t head = first_head; head < first_head + shape.n_kv_heads; ++head) {
      const auto i = static_cast<size_t>(layer * sensitivity.n_kv_heads + head);
      table.heads.push_back(
          {widths_of(sensitivity.k[i], k[i], price), widths_of(sensitivity.v[i], v[i], price), 0, {}});
    }
    table.lay_out();
    if (backend != nullptr) table.send(backend);
  }
  return widths;
}

}  // namespace smartkv
