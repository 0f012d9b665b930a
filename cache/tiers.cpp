#include "cache/tiers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "cache/quantized_page.h"

namespace smartkv {
namespace {

using kernels::KvSegment;

size_t tier_of(const KvSegment& segment) {
  if (segment.is_indexed()) return static_cast<size_t>(segment.row_bits);  // The bits of the rows; 0 is kExactTier.
  if (segment.format == KvSegment::Format::kDense || segment.format == KvSegment::Format::kCut) return kExactTier;
  const auto bits_of = [&](const kernels::CodeRuns& runs, kernels::ChannelWidths kernels::HeadWidths::*side) {
    return segment.table == nullptr ? mean_bits(runs) : segment.table->mean_bits(side);
  };
  const double bits =
      (bits_of(segment.quantized.k, &kernels::HeadWidths::k) + bits_of(segment.quantized.v, &kernels::HeadWidths::v)) /
      2;
  return static_cast<size_t>(std::clamp(std::ceil(bits), 1.0, 8.0));
}

// Calls visit(tier) for each entry that a KV head has in a segment. An entry that stands for several tokens has a bias.
template <typename Visit>
void for_each_entry(const KvSegment& segment, int64_t head, const Visit& visit) {
  const size_t tier = tier_of(segment);
  const float* bias = segment.bias == nullptr ? nullptr : segment.bias + head * kernels::kPageTokens;
  for (int32_t i = 0; i < segment.tokens; ++i) visit(bias != nullptr && bias[i] != 0 ? kSummarisedTier : tier);
}

// Counts the tokens of one layer's KV heads by tier, in spans of `width` positions.
class SpanCounter {
 public:
  SpanCounter(int64_t tokens, int64_t width)
      : tokens_(tokens),
        width_(width),
        counts_(static_cast<size_t>((tokens + width - 1) / width)),
        held_(counts_.size()) {}

  void add_head(const std::vector<KvSegment>& segments, int64_t head, const std::vector<int64_t>& positions) {
    std::fill(held_.begin(), held_.end(), 0);
    bool summarises = false;
    auto position = positions.begin();
    for (const KvSegment& segment : segments) {
      if (!segment.is_of(head)) {
        position += segment.tokens;
        continue;
      }
      for_each_entry(segment, head, [&](size_t tier) {
        const auto stretch = static_cast<size_t>(*position++ / width_);
        if (tier == kSummarisedTier) {
          summarises = true;
          return;
        }
        counts_[stretch][tier] += 1;
        ++held_[stretch];
      });
    }
    const size_t rest = summarises ? kSummarisedTier : kEvictedTier;
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i][rest] += static_cast<double>(length(i) - held_[i]);
    ++heads_;
  }

  std::vector<TierSpan> spans() const {
    std::vector<TierSpan> result;
    for (size_t i = 0; i < counts_.size(); ++i) {
      TierSpan span{static_cast<int64_t>(i) * width_, static_cast<int64_t>(i) * width_ + length(i), counts_[i]};
      for (double& share : span.shares) share /= static_cast<double>(length(i) * heads_);
      if (!result.empty() && alike(result.back().shares, span.shares)) {
        result.back().end = span.end;
      } else {
        result.push_back(span);
      }
    }
    return result;
  }

 private:
  int64_t length(size_t stretch) const { return std::min(width_, tokens_ - static_cast<int64_t>(stretch) * width_); }
  static bool alike(const TierShares& a, const TierShares& b) {
    return std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) { return std::abs(x - y) < 1e-9; });
  }

  int64_t tokens_, width_, heads_ = 0;
  std::vector<TierShares> counts_;  // Tokens of all heads so far, by span.
  std::vector<int64_t> held_;       // By span: tokens of the head being added that have their own entry.
};

}  // namespace

std::string_view tier_name(size_t tier) {
  static constexpr std::array<std::string_view, kTiers> kNames = {
      "exact", "1_bit", "2_bit", "3_bit", "4_bit", "5_bit", "6_bit", "7_bit", "8_bit", "summarised", "evicted"};
  return kNames.at(tier);
}

TierUse& TierUse::operator+=(const TierUse& other) {
  for (size_t tier = 0; tier < kTiers; ++tier) {
    tokens[tier] += other.tokens[tier];
    bytes[tier] += other.bytes[tier];
  }
  return *this;
}

TierUse tier_use(const SequenceCache& cache, const CacheShape& shape) {
  TierUse use;
  const kernels::AttentionShape one_head{
      .n_heads = 1, .n_kv_heads = 1, .head_dim = shape.head_dim, .scale = 1, .type = shape.type};
  std::vector<KvSegment> segments;
  for (int64_t layer = 0; layer < shape.n_layers; ++layer) {
    segments.clear();
    cache.view(layer, 0, &segments);
    for (int64_t head = 0; head < shape.n_kv_heads; ++head) {
      TierShares entries = {};
      for (const KvSegment& segment : segments) {
        if (!segment.is_of(head)) continue;
        const auto bytes = static_cast<double>(kernels::segment_bytes(one_head, segment));
        if (segment.bias == nullptr) {
          entries[tier_of(segment)] += segment.tokens;
          use.bytes[tier_of(segment)] += bytes;
        } else {
          for_each_entry(segment, head, [&](size_t tier) {
            entries[tier] += 1;
            use.bytes[tier] += bytes / segment.tokens;
          });
        }
      }
      const bool summarises = std::exchange(entries[kSummarisedTier], 0) > 0;
      const double held = std::accumulate(entries.begin(), entries.end(), 0.0);
      entries[summarises ? kSummarisedTier : kEvictedTier] = static_cast<double>(cache.tokens()) - held;
      for (size_t tier = 0; tier < kTiers; ++tier) use.tokens[tier] += entries[tier];
    }
  }
  for (double& n : use.tokens) n /= static_cast<double>(std::max<int64_t>(1, shape.n_layers) * shape.n_kv_heads);
  return use;
}

std::vector<TierSpan> tier_spans(const SequenceCache& cache, const CacheShape& shape, int64_t layer, int64_t most) {
  int64_t width = 1;
  while (width * most < cache.tokens()) width *= 2;
  SpanCounter counter(cache.tokens(), width);
  std::vector<KvSegment> segments;
  cache.view(layer, 0, &segments);
  for (int64_t head = 0; head < shape.n_kv_heads; ++head)
    counter.add_head(segments, head, cache.positions(layer, head));
  return counter.spans();
}

}  // namespace smartkv
