// Measures on held-out text how well gates choose the tokens to keep.
#pragma once

#include "cache/policies/gated_eviction/gate.h"
#include "lab/training/lifespans.h"

namespace smartkv {

// Which tokens are kept.
struct KeepOptions {
  int64_t sinks = 4;     // first tokens, always kept
  int64_t window = 128;  // last tokens, always kept
  double share = 0.25;   // share of all tokens that is kept, including the sinks and the window
};

struct GateQuality {
  double loss = 0;         // deviance divided by that of the best constant score; 1 means no better than a constant
  double recall = 0;       // share kept of the tokens that live longer than a quarter of the text
  double specificity = 0;  // share evicted of the other tokens
  // Mean attention on evicted tokens, per query in the second half of the text, if each step keeps the best tokens so
  // far. The best tokens are those with the latest expiry, with the smallest key norm, and the most recent ones,
  // respectively.
  double lost = 0, lost_by_norm = 0, lost_by_recency = 0;

  GateQuality& operator+=(const GateQuality& other);
  GateQuality operator/(double n) const;
};

// Measures one layer on one window that was observed with LifespanOptions::sampled_every = `sampled_every`.
GateQuality measure_gate(const GateLayer& gate, const LayerLifespans& layer, int64_t sampled_every,
                         const KeepOptions& keep);

}  // namespace smartkv
