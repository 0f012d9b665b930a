// What a store of keys without the channels that do not matter does, and the layouts of its pages.
#pragma once

#include <cstdint>

#include "cache/policies/channel_packed/fidelity.h"
#include "cache/quantized_page.h"

namespace smartkv {

struct ChannelOptions {
  int64_t key_channels = 0;       // of a packed page, a multiple of 4
  int key_bits = 8, value_bits = 8;
  bool query_aware = true;        // worth by E[q^2] E[k^2]; false: by the keys' size
  double decay = 0.8;             // of the means, per boundary
  int64_t update_every = 256;     // tokens between selections
  int64_t stable_updates = 2;     // selections in a row that retain `retention` of the channels before a layer is packed
  double retention = 0.9;
  int64_t check_every = 512;      // tokens between the guard's checks
  int64_t probes = 8;             // queries before each boundary
  FidelityLimits limits;
};

// Layouts of pages: of a full layer, of a packed one and its residual, and of one that was packed and is full again.
struct ChannelLayouts {
  kernels::QuantizedLayout full, packed, residual, restored;
};
ChannelLayouts channel_layouts(const CacheShape& shape, const ChannelOptions& options);

}  // namespace smartkv
