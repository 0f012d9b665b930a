// The scorers of gated_eviction. block_summary uses the gate, too.
#pragma once

#include <memory>
#include <string>

#include "cache/stores/token_scorer.h"

namespace smartkv {

// Scores tokens by the gates of this name (PolicyContext::load_gate). Throws ModelLacks without such a gate, also for a
// gate of whole heads if `ranks_within_heads`.
TokenScorer make_gate_scorer(const PolicyContext& context, const std::string& gate, bool ranks_within_heads);
// Scores a token by the importance maps of the model's calibration. Throws ModelLacks without one.
std::shared_ptr<const PageScorer> make_calibrated_scorer(const PolicyContext& context);
std::shared_ptr<const PageScorer> make_key_norm_scorer();
std::shared_ptr<const AttentionScorer> make_decayed_attention_scorer();

// By the model's gates or, without any, by its calibration or else by the attention that tokens received. stand_in says
// so then; else it is empty.
struct BestScorer {
  TokenScorer scorer;
  std::string stand_in;
};
BestScorer make_best_scorer(const PolicyContext& context, const std::string& gate, bool ranks_within_heads);

}  // namespace smartkv
