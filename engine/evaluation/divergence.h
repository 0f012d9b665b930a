// Perplexity and divergence of compressed caches from the full one, on windows of a text.
//
// Compression is active during the pass, as in generation: every token counts as generated (but for prompt_tokens), and
// is predicted from the cache as it stands. One pass per policy serves all figures; the full cache's is shared.
#pragma once

#include <span>
#include <vector>

#include "engine/evaluation/evaluation.h"
#include "engine/evaluation/policy_list.h"
#include "engine/evaluation/report.h"

namespace smartkv {

struct DivergenceOptions {
  int64_t context = 1024;     // tokens of a window
  int64_t windows = 4;        // spread over the text
  int64_t from = 0;           // tokens at the start of each window that do not count
  int64_t prompt_tokens = 1;  // tokens at the start of each window that policies take for the prompt
  bool divergence = true;     // false: the report shows perplexity
};

// `policies`: the reference first. Throws EvaluationError: the text is too short, or a result is not finite (naming
// policy, window and token).
EvaluationReport measure_divergence(const EvaluationModel& model, std::span<const PolicySpec> policies,
                                    std::span<const TokenId> tokens, const DivergenceOptions& options,
                                    const Progress& progress = nullptr);

}  // namespace smartkv
