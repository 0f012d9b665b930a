// Options of CutStore.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/policies/channel_packed/fidelity.h"
#include "cache/policies/channel_packed/selection_options.h"

namespace smartkv {

// The worth of channels, loaded from a file of `smartkv train-probe`.
struct ChannelWorth {
  std::vector<float> keys;    // [n_layers, n_kv_heads, head_dim / 2]: by RoPE pair.
  std::vector<float> values;  // [n_layers, n_kv_heads, head_dim]
};

struct CutOptions : SelectionOptions {
  // Channels that stay, multiples of 16.
  int64_t key_channels = 0, value_channels = 0;
  // Tokens of an answer between comparisons with an exact cache. 0: there are none.
  int64_t check_every = 1024;
  FidelityLimits attention;
  FidelityLimits logits{.top = 8, .least_overlap = 0.75, .most_margin_drift = 1, .most_kl = 0.1};
  // Selects the channels from the first boundary on. Null: what the sequence itself shows selects them.
  std::shared_ptr<const ChannelWorth> worth = {};

  // Whether any channel is cut.
  bool cuts(int64_t head_dim) const { return std::min(key_channels, value_channels) < head_dim; }
};

}  // namespace smartkv
