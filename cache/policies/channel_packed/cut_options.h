// What a store that cuts channels does.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/policies/channel_packed/fidelity.h"

namespace smartkv {

// The worth of channels that a file of `smartkv train-probe` names.
struct ChannelWorth {
  std::vector<float> keys;    // [n_layers, n_kv_heads, head_dim / 2]: of RoPE pairs
  std::vector<float> values;  // [n_layers, n_kv_heads, head_dim]
};

struct CutOptions {
  int64_t key_channels = 0, value_channels = 0;  // that stay; multiples of 16
  bool query_aware = true;                       // keys' worth by E[q^2] E[k^2]; false: by the keys' size
  double decay = 0.8;                            // of the means, per boundary
  int64_t update_every = 256;                    // tokens between selections
  int64_t stable_updates = 2;                    // selections in a row that retain `retention` of the channels before a layer is cut
  double retention = 0.9;
  int64_t check_every = 1024;                    // tokens of an answer between comparisons with an exact cache; 0: none
  int64_t probes = 8;                            // queries before each boundary
  FidelityLimits attention;
  FidelityLimits logits{.top = 8, .least_overlap = 0.5, .most_margin_drift = 1, .most_kl = 0.1};
  std::shared_ptr<const ChannelWorth> worth = {};  // decides from the first boundary on; null: what a sequence shows itself

  bool cuts_keys(int64_t head_dim) const { return key_channels < head_dim; }
  bool cuts_values(int64_t head_dim) const { return value_channels < head_dim; }
};

}  // namespace smartkv
