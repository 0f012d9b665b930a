// Recall of what is hidden in a long text: numbers, one of which is asked for ("needle in a haystack", Kamradt 2023, with
// four needles); chains of variables and words that are listed most often (after RULER, Hsieh et al. 2024, in real text).
// The question comes after the policy has compressed the context, which it takes for the prompt; and once more, with more
// text between, if so wanted. The questions of a prompt share its text, so errors count prompts. Beside the policies of the
// registry there is "kvzip" (kvzip.h).
#pragma once

#include <span>
#include <vector>

#include "engine/evaluation/evaluation.h"
#include "engine/evaluation/policy_list.h"
#include "engine/evaluation/report.h"

namespace smartkv {

struct RecallOptions {
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};  // tokens of the context, needles included
  std::vector<double> depths = {0.1, 0.3, 0.5, 0.7, 0.9};  // of the asked needle, as a share of the context
  int64_t questions = 200;                                 // at least, over all lengths
  std::string task = "facts";                              // of recall_tasks()
  std::string wording = "number";                          // of recall_wordings(): facts only
  int64_t facts_asked = 1;  // by one question, up to kNeedles, scored by the share of them that is right: facts only
  int64_t again = 0;  // tokens of text after the answer, after which the same is asked again; 0: it is not
};

// How facts are told and asked for. None is among those that gates are trained with (engine/torch/hidden_facts.cpp).
std::vector<std::string> recall_wordings();
// "facts"; "variables": all names that have a value, one of which got it from the other; "words": the three that lists of words
// have most often, among others. The latter begin with a solved example; an answer counts by the share that it has of what is right.
std::vector<std::string> recall_tasks();

// One context and its questions.
struct RecallPrompt {
  struct Question {
    int64_t depth = 0;                 // of what is asked for: index into RecallOptions::depths; -1: it has several
    std::vector<std::string> answers;  // all that is right
    std::string text;
    int64_t answer_tokens = 0;         // room for an answer
  };
  std::vector<TokenId> context;
  std::vector<TokenId> after;  // the text goes on: RecallOptions::again tokens
  std::vector<Question> questions;  // questions_of(task)
};
constexpr int64_t kNeedles = 4;
int64_t questions_of(const std::string& task);

// The prompt number `index` of `count` with `length` tokens; the same for the same arguments. Throws EvaluationError.
RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::span<const TokenId> text, const RecallOptions& options,
                                int64_t length, int64_t index, int64_t count);

// `policies`: the reference first. Throws EvaluationError.
EvaluationReport measure_recall(const EvaluationModel& model, const Tokenizer& tokenizer,
                                std::span<const PolicySpec> policies, std::span<const TokenId> text,
                                const RecallOptions& options, const Progress& progress = nullptr);

}  // namespace smartkv
