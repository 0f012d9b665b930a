// Measures long chains of reasoning that the model generates itself. Each step looks up a line of a table and adds its
// number to a total, so that one wrong token spoils all steps after it. Teacher forcing does not show such errors.
//
// The prompt holds a solved chain as an example. It is compressed before the chain asked for begins.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lab/evaluation/evaluation.h"
#include "lab/evaluation/policy_list.h"
#include "lab/evaluation/report.h"

namespace smartkv {

struct ReasoningOptions {
  int64_t problems = 8;         // decoded side by side
  int64_t answer_tokens = 320;  // least tokens of a right answer
};

// One chain. The model is shown `prompt`, then `question`, and is to write `steps`, a line each.
struct ReasoningProblem {
  std::string prompt, question;
  std::vector<std::string> steps;
  std::string result;  // of the last step

  // Returns how many of the first lines of `answer` are right.
  int64_t right_steps(const std::string& answer) const;
  // Whether the last step is right, whatever the model wrote before.
  bool right_result(const std::string& answer) const;
};

// Makes problem number `index`. Equal arguments give equal problems.
ReasoningProblem make_reasoning_problem(const Tokenizer& tokenizer, const ReasoningOptions& options, int64_t index);

// Measures all policies; the first one is the reference. Throws EvaluationError.
EvaluationReport measure_reasoning(const EvaluationModel& model, const Tokenizer& tokenizer,
                                   std::span<const PolicySpec> policies, const ReasoningOptions& options,
                                   const Progress& progress = nullptr);

}  // namespace smartkv
