// Measures what every preset and policy costs on one model, for `smartkv eval report`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/text/chat_template.h"
#include "lab/evaluation/evaluation.h"
#include "lab/evaluation/policy_list.h"
#include "lab/evaluation/recall.h"
#include "lab/evaluation/report.h"

namespace smartkv {

// A text to measure divergence on.
struct ReportText {
  std::string kind;    // "prose", "code", ...
  std::string source;  // what the page says about it
  std::vector<TokenId> tokens;
};

struct ModelReportOptions {
  std::vector<std::string> topics = {"divergence", "reasoning", "agent", "recall", "speed"};
  std::string kv_cache = {};  // a list as for parse_policy_list(); empty for all rows
  // Measures reasoning, agent, recall and speed for all rows, instead of the presets and a few others.
  bool all_rows = false;
  int64_t context = 2048, from = 1024, windows = 1;  // divergence; see DivergenceOptions
  std::vector<int64_t> lengths = {1024};             // recall
  int64_t prompts = 2;                               // recall and agent: of each length
  int64_t agent_tokens = 2560;                       // agent: tokens of a conversation
  int64_t problems = 6, answer_tokens = 320;         // reasoning
  int64_t depth = 2048;                              // speed: tokens in the cache

  // The options of a report that takes a few minutes.
  static ModelReportOptions quick();
};

// Parts of a model that a report needs.
struct ReportModel {
  const EvaluationModel& evaluated;  // its make_policy() also makes simulated policies
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template = nullptr;  // null if the model has none
};

// Returns a function that renders messages. Null if there is no template.
std::function<std::string(const nlohmann::ordered_json& messages, bool open)> chat_renderer(const ReportModel& model);

// Returns the texts that ship with the program, tokenized. The chat is rendered by the model's template, or as plain
// text if it has none.
std::vector<ReportText> shipped_texts(const ReportModel& model);

// A row of the report.
struct ReportRow {
  PolicySpec spec;
  std::string remark;  // what stands in, what it equals, or why it cannot run
  bool runs = true;
  bool simulated = false;
  bool in_tasks = true;  // whether the topics other than divergence measure it, too
  size_t same_as = 0;    // index of the row that is measured for this one; its own if there is none
};
// Returns the rows in the order of the page, "full" first. Throws CacheError for a bad list.
std::vector<ReportRow> report_rows(const ReportModel& model, const ModelReportOptions& options);

struct ReportProgress {
  std::function<void(const std::string& topic)> on_topic;  // may be null
  Progress progress;                                       // within a topic; may be null
  // Called after each topic with the page so far; may be null.
  std::function<void(const ReportPage& page)> on_page;
};

// Measures all topics. A topic that the model cannot do becomes a section that says why. Throws EvaluationError, and
// CacheError for a bad list of policies.
ReportPage measure_model(const ReportModel& model, const std::vector<ReportText>& texts,
                         const ModelReportOptions& options, const ReportProgress& progress = {});

}  // namespace smartkv
