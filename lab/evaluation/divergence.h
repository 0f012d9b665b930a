// Measures perplexity under compressed caches, and their divergence from the full cache, on windows of a text.
//
// Compression is active during the pass, as in generation. Every token except the first prompt_tokens counts as
// generated, and is predicted from the cache as it is at that point. One pass per policy yields all statistics; the
// pass of the full cache serves as reference for all policies.
#pragma once

#include <span>

#include "lab/evaluation/evaluation.h"
#include "lab/evaluation/policy_list.h"
#include "lab/evaluation/report.h"

namespace smartkv {

struct DivergenceOptions {
  int64_t context = 1024;     // tokens of a window
  int64_t windows = 4;        // spread over the text
  int64_t from = 0;           // first tokens of each window that are not counted
  int64_t prompt_tokens = 1;  // first tokens of each window that policies treat as the prompt
  // Neighbouring tokens that form one sample for the standard errors.
  int64_t block = 256;
  bool divergence = true;  // false shows perplexity only
};

// Measures all policies; the first one is the reference. Throws EvaluationError if the text is too short, or if a
// result is not finite (naming policy, window and token).
EvaluationReport measure_divergence(const EvaluationModel& model, std::span<const PolicySpec> policies,
                                    std::span<const TokenId> tokens, const DivergenceOptions& options,
                                    const Progress& progress = nullptr);

}  // namespace smartkv
