// How well gates tell on held-out text which tokens to keep.
#pragma once

#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "engine/torch/lifespans.h"

namespace smartkv {

// What is always kept, and the share of a window's tokens that is kept in all.
struct KeepOptions {
  int64_t sinks = 4;
  int64_t window = 128;
  double share = 0.25;
};

struct GateQuality {
  double loss = 0;         // deviance over that of a constant score: 1 is no better than one
  double recall = 0;       // of the tokens that live longer than a quarter of the text, the part that is kept
  double specificity = 0;  // of the others, the part that is evicted
  // Attention that falls on evicted tokens, per query behind the middle of the text, when each step keeps the best
  // tokens so far: by the latest expiry, by the smallest key norm, and the latest only.
  double lost = 0, lost_by_norm = 0, lost_by_recency = 0;

  GateQuality& operator+=(const GateQuality& other);
  GateQuality operator/(double n) const;
};

// One layer on one window that was observed with sampled queries.
GateQuality measure_gate(const GateLayer& gate, const LayerLifespans& layer, int64_t sampled_every,
                         const KeepOptions& keep);

}  // namespace smartkv
