#include "lab/evaluation/reasoning.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>

#include "lab/evaluation/answers.h"
#include "lab/evaluation/statistics.h"

namespace smartkv {
namespace {

using Random = std::mt19937_64;

constexpr std::array<const char*, 40> kTableNames = {
    "Oslo",   "Rome",    "Lima",   "Cairo",  "Delhi", "Paris", "Tokyo",  "Milan",  "Quito",  "Dublin",
    "Madrid", "Athens",  "Bern",   "Riga",   "Sofia", "Tunis", "Hanoi",  "Lagos",  "Minsk",  "Doha",
    "Havana", "Prague",  "Vienna", "Zagreb", "Seoul", "Kiev",  "Accra",  "Boston", "Dakar",  "Geneva",
    "Miami",  "Nairobi", "Porto",  "Sydney", "Turin", "York",  "Berlin", "London", "Lisbon", "Moscow"};

template <typename T>
void shuffle(std::vector<T>* items, Random& random) {
  for (size_t left = items->size(); left > 1; --left) std::swap((*items)[random() % left], (*items)[left - 1]);
}

// A round trip: the road leads from each place to the next and from the last one to the first.
struct Table {
  std::vector<std::string> places;
  std::vector<int64_t> hours;  // of the way from each place to the next

  Table(std::span<const std::string> names, Random& random) : places(names.begin(), names.end()) {
    const size_t n = places.size();
    for (size_t i = 0; i < n; ++i) hours.push_back(static_cast<int64_t>(1 + random() % 9));
  }
  std::string line(size_t i) const {
    return "From " + places[i] + " the road goes to " + places[(i + 1) % places.size()] + ": " +
           std::to_string(hours[i]) + " hours.";
  }
  // Returns the lines in random order, so that each step has to be looked up.
  std::string text(Random& random) const {
    std::vector<size_t> order(places.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    shuffle(&order, random);
    std::string text;
    for (const size_t i : order) text += line(i) + "\n";
    return text;
  }
  std::string question() const {
    return "Question: How long is the road from " + places[0] + " until it is back in " + places[0] + ", in " +
           std::to_string(places.size()) + " steps?\nAnswer:\n";
  }
  // Returns the steps of the answer and, in *result, its last line.
  std::vector<std::string> steps(std::string* result) const {
    std::vector<std::string> steps;
    int64_t sum = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const std::string before = std::to_string(sum);
      sum += hours[i];
      steps.push_back(std::to_string(i + 1) + " of " + std::to_string(places.size()) + ". " + line(i) +
                      " Sum: " + before + " + " + std::to_string(hours[i]) + " = " + std::to_string(sum));
    }
    *result = "Back in " + places[0] + ". Total: " + std::to_string(sum) + " hours.";
    return steps;
  }
};

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    while (!lines.back().empty() && lines.back().back() == ' ') lines.back().pop_back();
    at = end + 1;
  }
  return lines;
}

struct PolicyAnswers {
  std::vector<GreedyAnswer> answers;
  double bytes = 0, full_bytes = 0;  // at the end of the answers
};

PolicyAnswers answers_of(const EvaluationModel& model, const Tokenizer& tokenizer, const PolicySpec& spec,
                         std::span<const ReasoningProblem> problems, int64_t max_tokens) {
  std::vector<std::unique_ptr<SequenceCache>> caches;
  std::vector<std::string> questions;
  for (const ReasoningProblem& problem : problems) {
    const std::vector<TokenId> prompt = tokenizer.encode(problem.prompt, {false, false});
    const auto n = static_cast<int64_t>(prompt.size());
    const auto policy = model.make_policy(spec.for_context(n + max_tokens));
    feed(model.model, *caches.emplace_back(policy->new_sequence(n)), prompt, 0, nullptr);
    questions.push_back(problem.question);
  }
  PolicyAnswers result;
  result.answers = answer_greedily(model, tokenizer, caches, questions, {max_tokens, true, "\n\n"}, spec.label);
  for (const auto& cache : caches) {
    const CacheStats stats = cache->stats();
    result.bytes += static_cast<double>(stats.bytes);
    result.full_bytes += static_cast<double>(stats.full_bytes);
  }
  return result;
}

// Returns how many tokens both answers begin with.
int64_t common_tokens(const GreedyAnswer& a, const GreedyAnswer& b) {
  const auto [first, second] = std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
  (void)second;
  return first - a.tokens.begin();
}

nlohmann::ordered_json row_of(const PolicySpec& spec, std::span<const ReasoningProblem> problems,
                              const PolicyAnswers& own, const PolicyAnswers& reference) {
  std::vector<double> exact, steps, same, common, tokens;
  for (size_t i = 0; i < problems.size(); ++i) {
    const ReasoningProblem& problem = problems[i];
    const GreedyAnswer& answer = own.answers[i];
    const GreedyAnswer& full = reference.answers[i];
    exact.push_back(problem.right_result(answer.text) ? 100 : 0);
    steps.push_back(100 * static_cast<double>(problem.right_steps(answer.text)) /
                    static_cast<double>(problem.steps.size()));
    same.push_back(answer.text == full.text ? 100 : 0);
    common.push_back(static_cast<double>(common_tokens(answer, full)));
    tokens.push_back(static_cast<double>(answer.tokens.size()));
  }
  return {{"policy", spec.label},          {"ratio", own.bytes / own.full_bytes},
          {"exact_percent", mean(exact)},  {"exact_error", standard_error(exact)},
          {"steps_percent", mean(steps)},  {"steps_error", standard_error(steps)},
          {"same_percent", mean(same)},    {"same_error", standard_error(same)},
          {"common_tokens", mean(common)}, {"common_error", standard_error(common)},
          {"answer_tokens", mean(tokens)}, {"problems", problems.size()}};
}

}  // namespace

int64_t ReasoningProblem::right_steps(const std::string& answer) const {
  const std::vector<std::string> lines = lines_of(answer);
  size_t right = 0;
  while (right < steps.size() && right < lines.size() && lines[right] == steps[right]) ++right;
  return static_cast<int64_t>(right);
}

bool ReasoningProblem::right_result(const std::string& answer) const {
  const std::vector<std::string> lines = lines_of(answer);
  return std::find(lines.begin(), lines.end(), result) != lines.end();
}

ReasoningProblem make_reasoning_problem(const Tokenizer& tokenizer, const ReasoningOptions& options, int64_t index) {
  constexpr uint64_t kSeed = 0x5eed'0000;
  constexpr size_t kExamples = 2, kExamplePlaces = 5;
  const std::string lead = "The table tells where each road goes and how long it takes.\n\n";
  constexpr size_t kMostPlaces = kTableNames.size() - kExamples * kExamplePlaces;
  for (size_t n = kExamplePlaces; n <= kMostPlaces; ++n) {
    Random random(kSeed + static_cast<uint64_t>(index));
    std::vector<std::string> names(kTableNames.begin(), kTableNames.end());  // each place is in one table only
    shuffle(&names, random);
    const std::span<const std::string> all(names);
    ReasoningProblem problem;
    for (size_t i = 0; i < kExamples; ++i) {
      const Table example(all.subspan(kMostPlaces + i * kExamplePlaces, kExamplePlaces), random);
      const std::string steps = joined(example.steps(&problem.result));
      problem.prompt += lead + example.text(random) + "\n" + example.question() + steps + problem.result + "\n\n";
    }
    const Table own(all.first(n), random);
    problem.prompt += lead + own.text(random) + "\n";
    problem.question = own.question();
    problem.steps = own.steps(&problem.result);
    const std::string answer = joined(problem.steps) + problem.result;
    if (static_cast<int64_t>(tokenizer.encode(answer, {false, false}).size()) >= options.answer_tokens) return problem;
  }
  throw EvaluationError("reasoning: expected answers of at most the tokens of " + std::to_string(kMostPlaces) +
                        " steps, found " + std::to_string(options.answer_tokens));
}

EvaluationReport measure_reasoning(const EvaluationModel& model, const Tokenizer& tokenizer,
                                   std::span<const PolicySpec> policies, const ReasoningOptions& options,
                                   const Progress& progress) {
  std::vector<ReasoningProblem> problems;
  int64_t max_tokens = 0, longest = 0;
  double steps = 0;
  for (int64_t i = 0; i < options.problems; ++i) {
    const ReasoningProblem& problem = problems.emplace_back(make_reasoning_problem(tokenizer, options, i));
    const std::string answer = joined(problem.steps) + problem.result;
    const auto tokens = static_cast<int64_t>(tokenizer.encode(answer, {false, false}).size());
    max_tokens = std::max(max_tokens, tokens + 16);
    const std::string asked = problem.prompt + problem.question;
    longest = std::max(longest, static_cast<int64_t>(tokenizer.encode(asked, {false, false}).size()));
    steps += static_cast<double>(problem.steps.size()) / static_cast<double>(options.problems);
  }
  check_context(model, longest + max_tokens);
  EvaluationReport report;
  report.title = "Long reasoning";
  report.conditions = {{"metric", "reasoning"},
                       {"problems", options.problems},
                       {"steps", steps},
                       {"prompt_tokens", longest},
                       {"most_answer_tokens", max_tokens}};
  report.columns = {{"policy", "policy"},
                    {"ratio", "of full", "%.3f"},
                    {"exact_percent", "right results %", "%.0f", "exact_error"},
                    {"steps_percent", "right steps %", "%.1f", "steps_error"},
                    {"same_percent", "same text as full %", "%.0f", "same_error"},
                    {"common_tokens", "tokens until it differs", "%.0f", "common_error"},
                    {"answer_tokens", "tokens", "%.0f"}};
  std::vector<PolicyAnswers> answers;
  for (const PolicySpec& spec : policies) {
    answers.push_back(answers_of(model, tokenizer, spec, problems, max_tokens));
    report.rows.push_back(row_of(spec, problems, answers.back(), answers.front()));
    if (progress) progress(static_cast<double>(answers.size()) / static_cast<double>(policies.size()));
  }
  report.x_key = "ratio";
  report.x_title = "bytes, relative to full";
  report.y_key = "steps_percent";
  report.y_title = "right steps, %";
  report.y_error_key = "steps_error";
  report.lower_is_better = false;
  return report;
}

}  // namespace smartkv
