// Measures, layer by layer, how far attention over compressed caches is from attention over the full one
// (shadow_cache.h).
#pragma once

#include <span>

#include "lab/evaluation/evaluation.h"
#include "lab/evaluation/policy_list.h"
#include "lab/evaluation/report.h"

namespace smartkv {

struct DriftOptions {
  int64_t context = 1024;     // tokens of a window
  int64_t windows = 4;        // spread over the text
  int64_t prompt_tokens = 1;  // first tokens of each window that policies treat as the prompt
  double share = 0.02;        // share of positions that are sampled
};

// Measures all policies in one pass of the model; the first one is the reference. Throws EvaluationError if the text is
// too short, if the model has a sliding window, or if a result is not finite (naming policy, window and layer).
EvaluationReport measure_drift(const EvaluationModel& model, std::span<const PolicySpec> policies,
                               std::span<const TokenId> tokens, const DriftOptions& options,
                               const Progress& progress = nullptr);

}  // namespace smartkv
