// The scorers of gated_eviction. block_summary uses the gate, too.
#pragma once

#include <memory>
#include <string>

#include "cache/stores/token_scorer.h"

namespace smartkv {

// Scores a token by the position at which it expires, as the gates of this name (PolicyContext::load_gate) predict it.
// Throws CacheError.
std::shared_ptr<const PageScorer> make_gate_scorer(const PolicyContext& context, const std::string& gate);
std::shared_ptr<const PageScorer> make_key_norm_scorer();
std::shared_ptr<const AttentionScorer> make_decayed_attention_scorer();

}  // namespace smartkv
