#include "lab/evaluation/recall.h"

#include <algorithm>
#include <cmath>

#include "lab/evaluation/answers.h"
#include "lab/evaluation/kvzip.h"
#include "lab/evaluation/markup.h"
#include "lab/evaluation/statistics.h"

namespace smartkv {
namespace {

struct Cell {
  int64_t asked = 0;
  double correct = 0;  // sum of the answers' scores, each in [0, 1]
  void add(const Cell& other) {
    asked += other.asked;
    correct += other.correct;
  }
  double percent() const { return 100 * correct / static_cast<double>(asked); }
};

// Returns the standard error of the ratio r = sum c / sum f of a policy's scores c to the reference's scores f. It uses
// the errors c_i - r f_i of the prompts (Cochran 1977, Sampling Techniques, section 2.11).
double ratio_error(const std::vector<double>& values, const std::vector<double>& reference) {
  double sum = 0, of = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    of += reference[i];
  }
  std::vector<double> errors;
  for (size_t i = 0; i < values.size(); ++i) errors.push_back(values[i] - sum / of * reference[i]);
  return standard_error(errors) * static_cast<double>(values.size()) / of;
}

// The results of one policy on the prompts of one length.
struct LengthResult {
  std::vector<Cell> depths;        // one cell for each depth, then one for questions without a depth
  std::vector<double> right = {};  // mean score of the questions of each prompt
  // Whether each right item was in the answer: by prompt, over all its questions.
  std::vector<std::vector<bool>> found = {};
  Cell again = {};  // results of asking a second time
  double bytes = 0, policy_bytes = 0, full_bytes = 0, tokens = 0,
         kept = 0;  // after compression, summed over the prompts

  Cell all() const {
    Cell sum;
    for (const Cell& cell : depths) sum.add(cell);
    return sum;
  }
  void add(const LengthResult& other) {
    for (size_t i = 0; i < depths.size(); ++i) depths[i].add(other.depths[i]);
    right.insert(right.end(), other.right.begin(), other.right.end());
    found.insert(found.end(), other.found.begin(), other.found.end());
    again.add(other.again);
    bytes += other.bytes;
    policy_bytes += other.policy_bytes;
    full_bytes += other.full_bytes;
    tokens += other.tokens;
    kept += other.kept;
  }
};

class Recall {
 public:
  Recall(const EvaluationModel& model, const Tokenizer& tokenizer) : model_(model), tokenizer_(tokenizer) {}

  void run(const RecallPrompt& prompt, const KvCachePolicy& policy, const std::string& label, LengthResult* result) {
    const auto cache = policy.new_sequence(static_cast<int64_t>(prompt.context.size()));
    feed(model_.model, *cache, prompt.context, 0, nullptr);
    const CacheStats stats = cache->stats();
    result->bytes += static_cast<double>(stats.bytes);
    result->policy_bytes += static_cast<double>(stats.policy_bytes());
    result->full_bytes += static_cast<double>(stats.full_bytes);
    result->tokens += static_cast<double>(stats.tokens);
    result->kept += static_cast<double>(stats.tokens_kept);
    std::vector<std::unique_ptr<SequenceCache>> forks;  // one for each question
    for (size_t i = 0; i < prompt.questions.size(); ++i) forks.push_back(cache->fork());
    const std::vector<GreedyAnswer> answers = ask(prompt, forks, label);
    double right = 0;
    std::vector<bool>& found = result->found.emplace_back();
    for (size_t i = 0; i < answers.size(); ++i) {
      const RecallPrompt::Question& question = prompt.questions[i];
      const std::vector<bool> items = items_found(question, answers[i].text);
      const double share = share_of(items);
      Cell& cell = question.depth < 0 ? result->depths.back() : result->depths[static_cast<size_t>(question.depth)];
      cell.add({1, share});
      right += share;
      found.insert(found.end(), items.begin(), items.end());
    }
    result->right.push_back(right / static_cast<double>(answers.size()));
    if (prompt.after.empty()) return;
    for (const auto& fork : forks) feed(model_.model, *fork, prompt.after, 0, nullptr);
    const std::vector<GreedyAnswer> later = ask(prompt, forks, label);
    for (size_t i = 0; i < later.size(); ++i)
      result->again.add({1, share_of(items_found(prompt.questions[i], later[i].text))});
  }

 private:
  static std::vector<bool> items_found(const RecallPrompt::Question& question, const std::string& answer) {
    std::vector<bool> found;
    for (const std::string& wanted : question.answers) found.push_back(answer.find(wanted) != std::string::npos);
    return found;
  }
  static double share_of(const std::vector<bool>& found) {
    return static_cast<double>(std::count(found.begin(), found.end(), true)) / static_cast<double>(found.size());
  }

  // Asks each question on its own cache.
  std::vector<GreedyAnswer> ask(const RecallPrompt& prompt, std::span<const std::unique_ptr<SequenceCache>> forks,
                                const std::string& label) const {
    std::vector<std::string> questions;
    for (const RecallPrompt::Question& question : prompt.questions) questions.push_back(question.text);
    const int64_t answer_tokens = prompt.questions[0].answer_tokens;  // equal for all questions
    return answer_greedily(model_, tokenizer_, forks, questions, {answer_tokens}, label);
  }

  const EvaluationModel& model_;
  const Tokenizer& tokenizer_;
};

// Adds the share of the items found by the reference that this result has found, too, with its standard error over
// prompts.
void add_share_of_found(const LengthResult& result, const LengthResult& reference, nlohmann::ordered_json* row) {
  std::vector<double> both, first;
  double sum = 0, of = 0, items = 0;
  for (size_t i = 0; i < reference.found.size(); ++i) {
    both.push_back(0);
    first.push_back(0);
    items += static_cast<double>(reference.found[i].size());
    for (size_t j = 0; j < reference.found[i].size(); ++j) {
      first.back() += reference.found[i][j] ? 1 : 0;
      both.back() += reference.found[i][j] && result.found[i][j] ? 1 : 0;
    }
    sum += both.back();
    of += first.back();
  }
  (*row)["items"] = items;
  (*row)["found"] = sum;
  (*row)["full_found"] = of;
  (*row)["of_found_percent"] = of == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(100 * sum / of);
  (*row)["of_found_error"] =
      of == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(100 * ratio_error(both, first));
}

std::string depth_key(double depth) { return formatted("%g", depth); }

nlohmann::ordered_json recall_row(const EvaluationModel& model, const RecallOptions& options, const PolicySpec& spec,
                                  const LengthResult& result, const LengthResult& reference) {
  const CacheShape& shape = model.shape;
  const double values = result.tokens * static_cast<double>(2 * shape.n_layers * shape.n_kv_heads * shape.head_dim);
  const Cell all = result.all(), full = reference.all();
  nlohmann::ordered_json row = {{"policy", spec.label},
                                {"bits_per_value", 8 * result.policy_bytes / values},
                                {"ratio", result.bytes / result.full_bytes},
                                {"kept_percent", 100 * result.kept / result.tokens}};
  for (size_t i = 0; i < options.depths.size(); ++i) {
    const Cell& cell = result.depths[i];
    row["depth_" + depth_key(options.depths[i])] =
        cell.asked == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(cell.percent());
  }
  row["correct_percent"] = all.percent();
  row["correct_error"] = 100 * standard_error(result.right);
  row["relative_percent"] =
      full.correct == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(100.0 * all.correct / full.correct);
  row["relative_error"] = full.correct == 0 ? nlohmann::ordered_json()
                                            : nlohmann::ordered_json(100 * ratio_error(result.right, reference.right));
  add_share_of_found(result, reference, &row);
  row["correct"] = all.correct;
  row["questions"] = all.asked;
  if (options.again > 0) row["again_percent"] = result.again.percent();
  return row;
}

}  // namespace

EvaluationReport measure_recall(const EvaluationModel& model, const Tokenizer& tokenizer,
                                std::span<const PolicySpec> policies, std::span<const TokenId> text,
                                const RecallOptions& options, const Progress& progress) {
  constexpr int64_t kQuestionTokens = 96;  // tokens reserved after the context for a question and its answer
  const int64_t of_prompt = questions_of(options.task);
  const auto n_lengths = static_cast<int64_t>(options.lengths.size());
  const int64_t twice = options.again > 0 ? options.again + kQuestionTokens : 0;
  for (const int64_t length : options.lengths) check_context(model, length + kQuestionTokens + twice);
  const int64_t prompts = (options.questions + n_lengths * of_prompt - 1) / (n_lengths * of_prompt);
  const LengthResult none{std::vector<Cell>(options.depths.size() + 1)};
  std::vector<std::vector<LengthResult>> results(policies.size(),
                                                 std::vector<LengthResult>(options.lengths.size(), none));
  Recall recall(model, tokenizer);
  double done = 0, total = 0;
  for (const int64_t length : options.lengths) total += static_cast<double>(length * prompts);
  for (size_t l = 0; l < options.lengths.size(); ++l) {
    std::vector<std::unique_ptr<KvCachePolicy>> made;
    for (const PolicySpec& spec : policies) {
      const nlohmann::json of_length = spec.for_context(options.lengths[l]);
      made.push_back(is_kvzip(of_length) ? nullptr : model.make_policy(of_length));
    }
    for (int64_t i = 0; i < prompts; ++i) {
      const RecallPrompt prompt = make_recall_prompt(tokenizer, text, options, options.lengths[l], i, prompts);
      for (size_t p = 0; p < policies.size(); ++p) {
        if (made[p] != nullptr) {
          recall.run(prompt, *made[p], policies[p].label, &results[p][l]);
          continue;
        }
        const auto oracle =
            make_kvzip_policy(model, tokenizer, policies[p].for_context(options.lengths[l]), prompt.context);
        recall.run(prompt, *oracle, policies[p].label, &results[p][l]);
      }
      done += static_cast<double>(options.lengths[l]);
      if (progress) progress(done / total);
    }
  }

  EvaluationReport report;
  const bool facts = options.task == "facts", by_depth = facts && options.facts_asked == 1;
  report.title = facts ? "Recall of numbers hidden in a text" : "Recall of " + options.task + " hidden in a text";
  report.conditions = {{"metric", "recall"}, {"task", options.task}, {"lengths", options.lengths}};
  if (facts)
    report.conditions.update({{"depths", options.depths}, {"needles", kNeedles}, {"wording", options.wording}});
  if (facts && !by_depth) report.conditions["facts_asked"] = options.facts_asked;
  if (options.again > 0) report.conditions["again"] = options.again;
  report.columns = {{"policy", "policy"},
                    {"length", "length"},
                    {"bits_per_value", "bits/value", "%.2f"},
                    {"ratio", "of full", "%.3f"},
                    {"kept_percent", "kept %", "%.1f"}};
  for (const double depth : by_depth ? options.depths : std::vector<double>())
    report.columns.push_back({"depth_" + depth_key(depth), "at " + depth_key(depth), "%.0f"});
  for (const ReportColumn& column : std::vector<ReportColumn>{{"correct_percent", "correct %", "%.1f"},
                                                              {"correct_error", "+-", "%.1f"},
                                                              {"relative_percent", "to full %", "%.1f"},
                                                              {"relative_error", "+-", "%.1f"},
                                                              {"correct", "correct", by_depth ? "%.0f" : "%.1f"},
                                                              {"questions", "questions", "%.0f"}}) {
    report.columns.push_back(column);
  }
  if (options.again > 0) report.columns.push_back({"again_percent", "again %", "%.1f"});
  for (size_t p = 0; p < policies.size(); ++p) {
    LengthResult all = none, reference = none;
    for (size_t l = 0; l < options.lengths.size(); ++l) {
      all.add(results[p][l]);
      reference.add(results[0][l]);
      report.rows.push_back(recall_row(model, options, policies[p], results[p][l], results[0][l]));
      report.rows.back()["length"] = options.lengths[l];
    }
    report.rows.push_back(recall_row(model, options, policies[p], all, reference));
    report.rows.back()["length"] = "all";
    report.rows.back()["overall_percent"] = all.all().percent();  // only these rows are in the chart
  }
  report.x_key = "bits_per_value";
  report.x_title = "bits per value, all bytes counted, after the prompt";
  report.y_key = "overall_percent";
  report.y_title = "correct answers, %";
  report.lower_is_better = false;
  return report;
}

}  // namespace smartkv
