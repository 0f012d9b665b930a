#include "cache/policies/channel_packed/channel_options.h"

#include <algorithm>

namespace smartkv {
namespace {

using kernels::CodeRuns;
using kernels::kPageTokens;

size_t width_index(int bits) {
  const auto at = std::find(kernels::kCodeBits.begin(), kernels::kCodeBits.end(), bits);
  return static_cast<size_t>(at - kernels::kCodeBits.begin());
}

// Returns runs with `channels` channels in `bits` bits. The others are in `rest` bits, or without codes if that is 0.
CodeRuns channel_runs(int64_t head_dim, int64_t channels, int bits, int rest) {
  CodeRuns runs;
  runs.quads[width_index(bits)] = static_cast<uint8_t>(channels / 4);
  const auto others = static_cast<uint8_t>((head_dim - channels) / 4);
  if (rest == 0) {
    runs.dropped = others;
  } else {
    runs.quads[width_index(rest)] = static_cast<uint8_t>(runs.quads[width_index(rest)] + others);
  }
  return runs;
}

}  // namespace

ChannelLayouts channel_layouts(const CacheShape& shape, const ChannelOptions& options) {
  const int64_t dim = shape.head_dim, kept = options.key_channels;
  const CodeRuns values = kernels::uniform_runs(kPageTokens, options.value_bits);
  CodeRuns residual_keys, no_values;
  residual_keys.quads[width_index(2)] = static_cast<uint8_t>((dim - kept) / 4);
  residual_keys.dropped = static_cast<uint8_t>(kept / 4);
  no_values.dropped = static_cast<uint8_t>(kPageTokens / 4);
  return {{kernels::uniform_runs(dim, options.key_bits), values},
          {channel_runs(dim, kept, options.key_bits, 0), values},
          {residual_keys, no_values},
          {channel_runs(dim, kept, options.key_bits, 2), values}};
}

}  // namespace smartkv
