// Scores tokens by the importance maps of a calibration.
#pragma once

#include <memory>

#include "cache/importance_map.h"
#include "cache/stores/token_scorer.h"

namespace smartkv {

// maps: of all KV heads of the model, [n_layers, context.all_kv_heads()]. Scores of all layers and KV heads can be
// compared. Computes on the host; a device copies its keys and values.
std::shared_ptr<const PageScorer> make_importance_scorer(std::shared_ptr<const std::vector<ImportanceMap>> maps);

}  // namespace smartkv
