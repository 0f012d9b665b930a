// Per layer, how far attention over compressed caches is from attention over the full one (shadow_cache.h).
#pragma once

#include <span>

#include "engine/evaluation/evaluation.h"
#include "engine/evaluation/policy_list.h"
#include "engine/evaluation/report.h"

namespace smartkv {

struct DriftOptions {
  int64_t context = 1024;     // tokens of a window
  int64_t windows = 4;        // spread over the text
  int64_t prompt_tokens = 1;  // tokens at the start of each window that policies take for the prompt
  double share = 0.02;        // of the positions that are sampled
};

// `policies`: the reference first. One pass of the model serves all. Throws EvaluationError: the text is too short, or
// a result is not finite (naming policy, window and layer).
EvaluationReport measure_drift(const EvaluationModel& model, std::span<const PolicySpec> policies,
                               std::span<const TokenId> tokens, const DriftOptions& options,
                               const Progress& progress = nullptr);

}  // namespace smartkv
