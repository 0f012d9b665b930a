// Measures recall of facts hidden in a long text. There are four tasks:
//  - "facts": four numbers are hidden, and one is asked for ("needle in a haystack", Kamradt 2023)
//  - "variables": chains of variables (after RULER, Hsieh et al. 2024, in real text)
//  - "words": the words that lists contain most often (after RULER, too)
//  - "agent": a conversation with tool calls, in the model's chat template; the results of early calls are asked for
//
// The policy treats the context as the prompt and compresses it before the question comes. If wanted, more text follows
// the answer and the question is asked once more. The questions of a prompt share its text, so standard errors are
// taken over prompts. Besides the policies of the registry there is "kvzip" (kvzip.h).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lab/evaluation/evaluation.h"
#include "lab/evaluation/policy_list.h"
#include "lab/evaluation/report.h"

namespace smartkv {

struct RecallOptions {
  std::vector<int64_t> lengths = {512, 1024, 2048, 4096};  // tokens of the context, needles included
  std::vector<double> depths = {0.1, 0.3, 0.5, 0.7, 0.9};  // places of the needle asked for, as shares of the context
  int64_t questions = 200;                                 // least number of questions over all lengths
  std::string task = "facts";                              // one of recall_tasks()
  std::string wording = "number";                          // one of recall_wordings(); facts only
  // Facts that one question asks for, up to kNeedles. The score is the share that is right. Facts only.
  int64_t facts_asked = 1;
  // Renders messages with the model's chat template; `open` begins the assistant's turn. Needed by "agent" only.
  std::function<std::string(const nlohmann::ordered_json& messages, bool open)> render_chat = {};
  int64_t again = 0;  // tokens of text after the answer, before the same question is asked again; 0 to ask once
};

// Returns the wordings in which facts are stated and asked for. Gates are not trained with any of them
// (lab/training/hidden_facts.cpp).
std::vector<std::string> recall_wordings();
// Returns the tasks.
//  - "facts"
//  - "variables": asks for all names that have a value; one of the two got it from the other
//  - "words": asks for the three words that occur most often in lists of words
//  - "agent": asks for a number in the result of one of the first tool calls, at least kAgentTurns calls later
// Prompts of "variables" and "words" begin with a solved example. An answer scores the share of the right items that it
// contains.
std::vector<std::string> recall_tasks();

// One context and its questions.
struct RecallPrompt {
  struct Question {
    int64_t depth = 0;                 // index into RecallOptions::depths; -1 if the answer has several places
    std::vector<std::string> answers;  // all right items
    std::string text;
    int64_t answer_tokens = 0;  // tokens to generate for the answer
  };
  std::vector<TokenId> context;
  std::vector<TokenId> after;       // RecallOptions::again tokens of the text after the context
  std::vector<Question> questions;  // questions_of(task) questions
};
constexpr int64_t kNeedles = 4;  // facts hidden in a context
constexpr int64_t kAgentTurns = 20;
// Returns the number of questions per prompt.
int64_t questions_of(const std::string& task);

// Fills in a prompt of the task "agent", with at most `length` tokens. Throws EvaluationError if the calls do not fit.
void make_agent_prompt(const Tokenizer& tokenizer, const RecallOptions& options, int64_t length, int64_t index,
                       RecallPrompt* prompt);

// Makes prompt number `index` of `count`, with `length` tokens. Equal arguments give equal prompts. Throws
// EvaluationError.
RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::span<const TokenId> text, const RecallOptions& options,
                                int64_t length, int64_t index, int64_t count);

// Measures all policies; the first one is the reference. Throws EvaluationError.
EvaluationReport measure_recall(const EvaluationModel& model, const Tokenizer& tokenizer,
                                std::span<const PolicySpec> policies, std::span<const TokenId> text,
                                const RecallOptions& options, const Progress& progress = nullptr);

}  // namespace smartkv
