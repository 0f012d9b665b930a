// Greedy answers of a model, decoded side by side.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lab/evaluation/evaluation.h"

namespace smartkv {

struct AnswerOptions {
  int64_t max_tokens = 8;  // tokens of the longest answer
  // If true, an answer ends at the tokenizer's end tokens, too, or before `stop` where that is not empty.
  bool may_end = false;
  std::string stop = {};
};

struct GreedyAnswer {
  std::vector<TokenId> tokens;  // without an end token
  std::string text;
};

// Appends questions[i] to caches[i] and returns the model's answers. `label` names the policy in errors. Throws
// EvaluationError if a logit is not finite. REQUIRES: as many caches as questions.
std::vector<GreedyAnswer> answer_greedily(const EvaluationModel& model, const Tokenizer& tokenizer,
                                          std::span<const std::unique_ptr<SequenceCache>> caches,
                                          std::span<const std::string> questions, const AnswerOptions& options,
                                          const std::string& label);

}  // namespace smartkv
