// Options of ChannelStore, which packs keys without their unimportant channels, and the layouts of its pages.
#pragma once

#include <cstdint>

#include "cache/policies/channel_packed/fidelity.h"
#include "cache/policies/channel_packed/selection_options.h"
#include "cache/quantized_page.h"

namespace smartkv {

struct ChannelOptions : SelectionOptions {
  int64_t key_channels = 0;  // Key channels of a packed page, a multiple of 4.
  int key_bits = 8, value_bits = 8;
  int64_t check_every = 512;  // Tokens between the guard's checks.
  FidelityLimits limits;
};

// Layouts of pages:
//  - full: a page of a full layer;
//  - packed: a page of a packed layer, without the channels that do not matter;
//  - residual: 2-bit keys of the channels that a packed page lacks;
//  - restored: a page that was packed and is full again.
struct ChannelLayouts {
  kernels::QuantizedLayout full, packed, residual, restored;
};
ChannelLayouts channel_layouts(const CacheShape& shape, const ChannelOptions& options);

}  // namespace smartkv
