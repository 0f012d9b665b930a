// Random tables of widths, and sequences with calibrated pages.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/calibrated_page.h"
#include "tests/kernels/attention_sequence.h"

namespace smartkv::kernels {

inline std::shared_ptr<const PageRotations> page_rotations(int64_t head_dim,
                                                           const std::shared_ptr<KvBackend>& backend = nullptr) {
  const auto rope = [head_dim](int64_t position, float* cos, float* sin) {
    for (int64_t f = 0; f < head_dim / 2; ++f) {
      const double angle =
          static_cast<double>(position) * std::pow(1e4, -2.0 * static_cast<double>(f) / static_cast<double>(head_dim));
      cos[f] = static_cast<float>(1.1 * std::cos(angle));  // with a factor, as YaRN has
      sin[f] = static_cast<float>(1.1 * std::sin(angle));
    }
  };
  return std::make_shared<PageRotations>(head_dim, rope, backend);
}

using Widths = std::vector<std::pair<int, int64_t>>;  // bits, quads

inline ChannelWidths channel_widths(int64_t head_dim, const Widths& widths, std::mt19937& random) {
  ChannelWidths side;
  for (const auto& [bits, quads] : widths) {
    for (size_t run = 0; run < kWidths.size(); ++run) {
      if (kWidths[run] == bits) side.quads[run] = static_cast<uint8_t>(quads);
    }
  }
  side.order.resize(static_cast<size_t>(head_dim));
  std::iota(side.order.begin(), side.order.end(), uint8_t{0});
  std::shuffle(side.order.begin(), side.order.end(), random);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int64_t d = 0; d < head_dim; ++d) side.mean.push_back(normal(random));
  return side;
}

inline WidthTable width_table(int64_t head_dim, int64_t heads, const Widths& k, const Widths& v, uint32_t seed,
                              const std::shared_ptr<KvBackend>& backend = nullptr) {
  std::mt19937 random(seed);
  WidthTable table;
  table.head_dim = head_dim;
  table.rotations = page_rotations(head_dim, backend);
  for (int64_t h = 0; h < heads; ++h) {
    HeadWidths& head = table.heads.emplace_back();
    head.k = channel_widths(head_dim, k, random);
    head.v = channel_widths(head_dim, v, random);
  }
  table.lay_out();
  if (backend != nullptr) table.send(backend);
  return table;
}

// A table whose heads differ in bytes and which has every width, as far as there are quads.
inline WidthTable every_width(int64_t head_dim, int64_t heads, const std::shared_ptr<KvBackend>& backend = nullptr) {
  std::mt19937 random(5);
  WidthTable table;
  table.head_dim = head_dim;
  table.rotations = page_rotations(head_dim, backend);
  for (int64_t h = 0; h < heads; ++h) {
    HeadWidths& head = table.heads.emplace_back();
    for (ChannelWidths* side : {&head.k, &head.v}) {
      *side = channel_widths(head_dim, {}, random);
      for (int64_t quad = 0; quad < head_dim / 4; ++quad) {
        const auto run = static_cast<size_t>(random() % (kWidths.size() + 1));
        if (run < kWidths.size()) ++side->quads[run];
      }
    }
  }
  table.lay_out();
  if (backend != nullptr) table.send(backend);
  return table;
}

// A table with two tiers, whose heads differ in bytes.
inline WidthTable two_tiers(int64_t head_dim, int64_t heads, int64_t wide_tokens,
                            const std::shared_ptr<KvBackend>& backend = nullptr) {
  std::mt19937 random(6);
  WidthTable table;
  table.head_dim = head_dim;
  table.wide_tokens = wide_tokens;
  table.rotations = page_rotations(head_dim, backend);
  for (int64_t h = 0; h < heads; ++h) {
    HeadWidths& head = table.heads.emplace_back();
    for (ChannelWidths* side : {&head.k, &head.v}) {
      *side = channel_widths(head_dim, {}, random);
      for (int64_t group = 0; group < head_dim / 16; ++group) {
        const size_t wide = random() % (kWidths.size() + 1), narrow = std::min(wide + random() % 4, kWidths.size());
        if (wide < kWidths.size()) side->wide_quads[wide] += 4;
        if (narrow < kWidths.size()) side->quads[narrow] += 4;
      }
    }
  }
  table.lay_out();
  if (backend != nullptr) table.send(backend);
  return table;
}

// Returns a mask with n bits.
inline uint64_t random_mask(int64_t n, std::mt19937& random) {
  uint64_t mask = 0;
  while (std::popcount(mask) < n) mask |= uint64_t{1} << random() % kPageTokens;
  return mask;
}

// Replaces dense pages of a sequence by calibrated ones, and its K and V by what they hold. The table must outlive it.
inline void calibrate(Sequence& sequence, const WidthTable& table, const std::vector<int64_t>& pages) {
  const int64_t dim = sequence.shape.head_dim, heads = sequence.shape.n_kv_heads;
  std::mt19937 random(8);
  for (const int64_t page : pages) {
    if ((page + 1) * kPageTokens + kDenseTail > sequence.tokens) continue;
    AlignedBuffer& memory = sequence.pages.emplace_back(static_cast<size_t>(table.bytes));
    const MirroredFloats middle = table.rotations->middle(page);
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<float> k(static_cast<size_t>(kPageTokens * dim)), v(k.size());
      const auto copy = [&](const auto& move) {
        for (int64_t t = 0; t < kPageTokens; ++t) {
          for (int64_t d = 0; d < dim; ++d) {
            move(static_cast<size_t>(((page * kPageTokens + t) * heads + h) * dim + d),
                 static_cast<size_t>(t * dim + d));
          }
        }
      };
      copy([&](size_t from, size_t to) { k[to] = sequence.k[from], v[to] = sequence.v[from]; });
      auto* const block = memory.data() + table.heads[static_cast<size_t>(h)].first;
      encode_calibrated(table, h, middle.host, k.data(), v.data(), random_mask(table.wide_tokens, random), block);
      decode_calibrated(table, h, middle.host, block, k.data(), v.data());
      copy([&](size_t to, size_t from) { sequence.k[to] = k[from], sequence.v[to] = v[from]; });
    }
    sequence.segments[static_cast<size_t>(page)] = KvSegment::calibrated(memory.data(), &table, middle);
  }
}

}  // namespace smartkv::kernels
