#include "lab/evaluation/model_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cache/presets.h"
#include "lab/benchmark/benchmark.h"
#include "lab/evaluation/divergence.h"
#include "lab/evaluation/evaluation_texts.h"
#include "lab/evaluation/kvzip.h"
#include "lab/evaluation/markup.h"
#include "lab/evaluation/reasoning.h"
#include "lab/evaluation/simulated_format.h"
#include "lab/evaluation/simulated_policy.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

// The rows of a report that names no policies: the presets, calibrated at several widths, all other policies of the
// registry, eviction to a quarter of the tokens, and the simulated formats.
std::vector<ReportRow> default_rows() {
  std::vector<ReportRow> rows = {{{"full", "full"}, ""}};
  const auto add = [&](PolicySpec spec, bool in_tasks) {
    rows.push_back({std::move(spec), "", true, false, in_tasks});
  };
  for (const PolicyPreset& preset : policy_presets()) add({std::string(preset.name), std::string(preset.name)}, true);
  for (const double bits : {8.5, 4.5, 3.5, 3.0, 2.5}) add({formatted("calibrated@%g", bits), "calibrated", bits}, true);
  for (const PolicyRow& policy : policy_registry()) {
    if (policy.name != "full" && policy.name != "calibrated")
      add({std::string(policy.name), std::string(policy.name)}, false);
  }
  for (const std::string eviction : {"gated_eviction", "snapkv", "kvzip"})
    add({eviction + "@0.25", eviction, 0.25}, eviction != "gated_eviction");
  for (const std::string& format : simulated_formats()) {
    const nlohmann::json policy = {{"policy", "simulated"}, {"format", format}};
    add({format + " (simulated)", policy}, format == "q4_0_hadamard");
  }
  return rows;
}

// Returns what a specification stands for, so that equal ones are measured once.
std::string identity_of(const PolicySpec& spec, int64_t context) {
  const nlohmann::json policy = spec.for_context(context);
  for (const PolicyPreset& preset : policy_presets()) {
    if (policy == preset.name) return preset.spec.dump();
  }
  return policy.is_string() ? nlohmann::json{{"policy", policy}}.dump() : policy.dump();
}

// Finds out whether the row can run, and what stands in.
void check_row(const ReportModel& model, int64_t context, ReportRow* row) {
  const nlohmann::json policy = row->spec.for_context(context);
  row->simulated = is_simulated(policy);
  try {
    if (is_kvzip(policy)) {
      check_kvzip(model.evaluated.shape, policy);
      row->remark = "oracle, which reads the prompt twice: recall only";
      return;
    }
    const auto made = model.evaluated.make_policy(policy);
    if (!made->stand_in().empty()) row->remark = "stands in: " + made->stand_in();
    if (row->simulated) row->remark = simulated_summary(policy.at("format").get<std::string>());
  } catch (const CacheError& error) {
    row->runs = false;
    row->remark = std::string("cannot run: ") + error.what();
  }
}

// Returns the indices of the rows to measure.
std::vector<size_t> measured(std::span<const ReportRow> rows, bool tasks, bool recall) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool oracle = is_kvzip(rows[i].spec.policy);
    const bool wanted = rows[i].runs && (!tasks || rows[i].in_tasks) && (recall || !oracle);
    if (wanted && rows[i].same_as == i) indices.push_back(i);
  }
  return indices;
}

std::vector<PolicySpec> specs_of(std::span<const ReportRow> rows, std::span<const size_t> indices) {
  std::vector<PolicySpec> specs;
  for (const size_t i : indices) specs.push_back(rows[i].spec);
  return specs;
}

// Returns a row of the page for each row whose representative is in `values`, which is by index of the row.
std::vector<Json> rows_of_page(std::span<const ReportRow> rows, const std::map<size_t, Json>& values) {
  std::vector<Json> shown;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto value = values.find(rows[i].same_as);
    if (value == values.end() && rows[i].runs) continue;
    Json row = value == values.end() ? Json::object() : value->second;
    row["policy"] = rows[i].spec.label;
    row["remark"] = rows[i].remark;
    row["simulated"] = rows[i].simulated;
    if (rows[i].same_as != i) row.erase("chart");  // one point for equal rows
    shown.push_back(std::move(row));
  }
  return shown;
}

EvaluationReport unmeasured(const std::string& title, const std::string& why) {
  EvaluationReport section;
  section.title = title;
  section.notes = {"Not measured: " + why};
  return section;
}

class Measurement {
 public:
  Measurement(const ReportModel& model, const std::vector<ReportText>& texts, const ModelReportOptions& options,
              const ReportProgress& progress)
      : model_(model), texts_(texts), options_(options), progress_(progress), rows_(report_rows(model, options)) {}

  EvaluationReport divergence() const {
    const std::vector<size_t> indices = measured(rows_, false, false);
    const std::vector<PolicySpec> specs = specs_of(rows_, indices);
    std::map<size_t, Json> values;
    EvaluationReport section;
    section.title = "Bytes and divergence";
    section.conditions = {{"context", options_.context}, {"scored from token", options_.from}};
    section.columns = {{"policy", "policy"},
                       {"ratio", "bytes of full", "%.3f"},
                       {"bits_per_value", "bits per value", "%.2f"},
                       {"bytes_per_token", "bytes per token", "%.0f"}};
    std::vector<ReportColumn> kl, perplexity, top;
    for (size_t t = 0; t < texts_.size(); ++t) {
      const ReportText& text = texts_[t];
      DivergenceOptions pass;
      pass.context = options_.context;
      pass.from = options_.from;
      pass.prompt_tokens = std::max<int64_t>(1, options_.from);
      pass.block = 64;
      pass.windows =
          std::clamp<int64_t>((static_cast<int64_t>(text.tokens.size()) - 1) / pass.context, 1, options_.windows);
      const EvaluationReport report =
          measure_divergence(model_.evaluated, specs, text.tokens, pass, part(t, texts_.size()));
      section.conditions["windows of " + text.kind] = pass.windows;
      for (size_t i = 0; i < indices.size(); ++i) {
        Json& row = values[indices[i]];
        const Json& own = report.rows[i];
        for (const char* key : {"ratio", "bits_per_value", "bytes_per_token"}) row[key] = own.at(key);
        for (const char* key :
             {"kl_mean", "kl_error", "change_percent", "change_error", "same_top_percent", "same_top_error"}) {
          row[text.kind + "_" + key] = own.at(key);
        }
        if (t == 0) row["chart"] = own.at("kl_mean");
      }
      const auto key = [&](const char* name) { return text.kind + "_" + name; };
      kl.push_back({key("kl_mean"), "KL, " + text.kind, "%.5f", key("kl_error")});
      perplexity.push_back({key("change_percent"), "perplexity, " + text.kind + ", %", "%+.2f", key("change_error")});
      top.push_back({key("same_top_percent"), "same top token, " + text.kind + ", %", "%.1f", key("same_top_error")});
    }
    for (const auto& group : {kl, perplexity, top})
      section.columns.insert(section.columns.end(), group.begin(), group.end());
    section.columns.push_back({"remark", "remark"});
    section.notes = {
        "The policy treats the tokens before the scored ones as the prompt. Every byte that a cache holds after the "
        "last token counts: exact windows, scales, indices and the state of the policy. KL is the mean divergence of "
        "the next token's distribution from that of the full cache, in nats. Perplexity is its change against the "
        "full cache. ± is a standard error over blocks of 64 tokens."};
    section.rows = rows_of_page(rows_, values);
    section.x_key = "ratio";
    section.x_title = "bytes, relative to full";
    section.y_key = "chart";
    section.y_title = "KL on " + texts_[0].kind + ", nats";
    section.y_error_key = texts_[0].kind + "_kl_error";
    return section;
  }

  EvaluationReport reasoning() const {
    const std::vector<size_t> indices = measured(rows_, true, false);
    EvaluationReport report = measure_reasoning(model_.evaluated, model_.tokenizer, specs_of(rows_, indices),
                                                {options_.problems, options_.answer_tokens}, part(0, 1));
    report.notes = {
        "The model generates whole answers, greedily: it follows a table for many steps and adds the numbers up. A "
        "result is right if the last line is. Right steps are those before the first mistake. Small models make "
        "mistakes with the full cache, too, so the answers are also compared with those of full: the share of equal "
        "texts, and the tokens before the first difference. ± is a standard error over problems."};
    return on_page(std::move(report), indices);
  }

  EvaluationReport agent() const {
    const std::string title = "Agent traces";
    if (model_.chat_template == nullptr) return unmeasured(title, "the model has no chat template.");
    RecallOptions options;
    options.task = "agent";
    options.lengths = {options_.agent_tokens};
    options.questions = options_.prompts * questions_of(options.task);
    options.render_chat = chat_renderer(model_);
    const std::vector<size_t> indices = measured(rows_, true, false);
    EvaluationReport report =
        measure_recall(model_.evaluated, model_.tokenizer, specs_of(rows_, indices), {}, options, part(0, 1));
    std::erase_if(report.rows, [](const Json& row) { return row.at("length") != "all"; });
    EvaluationReport section;
    section.title = title;
    section.conditions = {{"conversations", options_.prompts}, {"tokens of each", options_.agent_tokens}};
    section.notes = {
        "A conversation in the model's chat template: an agent inspects machine after machine with a tool. The user "
        "then asks for a number in one of the first " +
        std::to_string(kNeedles) + " results, at least " + std::to_string(kAgentTurns) +
        " calls later. The conversation is compressed before the question comes. The last column counts numbers that "
        "full finds, too. ± is a standard error over conversations."};
    section.columns = {{"policy", "policy"},
                       {"ratio", "bytes of full", "%.3f"},
                       {"correct_percent", "right numbers %", "%.0f", "correct_error"},
                       {"of_found_percent", "found of those that full finds %", "%.0f", "of_found_error"}};
    section.rows = std::move(report.rows);
    return on_page(std::move(section), indices);
  }

  EvaluationReport recall() const {
    struct Task {
      const char *key, *title;
      RecallOptions options;
    };
    std::vector<Task> tasks(5);
    tasks[0] = {"single", "single fact", {}};
    tasks[1] = {"several", "three facts at once", {}};
    tasks[1].options.facts_asked = 3;
    tasks[2] = {"dialogue", "dialogue", {}};
    tasks[2].options.wording = "dialogue";
    tasks[3] = {"variables", "variables", {}};
    tasks[3].options.task = "variables";
    tasks[4] = {"words", "common words", {}};
    tasks[4].options.task = "words";
    const std::vector<size_t> indices = measured(rows_, true, true);
    const std::vector<PolicySpec> specs = specs_of(rows_, indices);
    EvaluationReport section;
    section.title = "Recall";
    section.conditions = {{"lengths", options_.lengths}, {"prompts of each length and task", options_.prompts}};
    section.columns = {{"policy", "policy"}, {"length", "tokens"}, {"ratio", "bytes of full", "%.3f"}};
    std::vector<Json> merged;  // by policy and length
    for (size_t t = 0; t < tasks.size(); ++t) {
      RecallOptions& options = tasks[t].options;
      options.lengths = options_.lengths;
      options.questions = options_.prompts * questions_of(options.task) * static_cast<int64_t>(options_.lengths.size());
      const EvaluationReport report =
          measure_recall(model_.evaluated, model_.tokenizer, specs, texts_[0].tokens, options, part(t, tasks.size()));
      merged.resize(report.rows.size());
      for (size_t i = 0; i < report.rows.size(); ++i) {
        const Json& own = report.rows[i];
        if (t == 0) {
          for (const char* key : {"policy", "length", "ratio"}) merged[i][key] = own.at(key);
        }
        merged[i][tasks[t].key] = of_found(own);
      }
      section.columns.push_back({tasks[t].key, tasks[t].title});
    }
    section.notes = {
        "Facts are hidden in " + texts_[0].kind +
        ". The text is compressed before the question comes, and the answer is generated. Each cell: the share of the "
        "items that full finds which the policy finds, too, in percent, and their numbers. The row of full shows how "
        "many of all items it finds. ± is a standard error over prompts. kvzip is an oracle: it reads the text twice."};
    const bool one = options_.lengths.size() == 1;
    std::erase_if(merged, [&](const Json& row) { return one && row.at("length") == "all"; });
    section.rows = std::move(merged);
    return on_page(std::move(section), indices);
  }

  EvaluationReport speed() const {
    std::vector<size_t> indices = measured(rows_, true, false);
    std::erase_if(indices, [&](size_t i) { return rows_[i].simulated; });
    EvaluationReport section;
    section.title = "Speed";
    BenchmarkOptions rates;
    rates.depths = {options_.depth};
    rates.batches = {1};
    section.conditions = {{"prompt tokens", rates.prompts[0]},
                          {"tokens in the cache", options_.depth},
                          {"sequences", rates.batches[0]},
                          {"repetitions", rates.repetitions},
                          {"threads", model_.evaluated.threads.size()}};
    section.notes = {
        "Tokens per second of this machine, the median of the repetitions. Other programs that run at the same time "
        "change these figures. Simulated formats have no speed."};
    section.columns = {{"policy", "policy"},
                       {"prefill", "prompt, tokens/s", "%.1f"},
                       {"prefill_ratio", "of full", "%.2f"},
                       {"decode", "decode, tokens/s", "%.1f"},
                       {"decode_ratio", "of full", "%.2f"},
                       {"bytes_per_token", "bytes per token", "%.0f"}};
    for (size_t i = 0; i < indices.size(); ++i) {
      const PolicySpec& spec = rows_[indices[i]].spec;
      const auto policy = model_.evaluated.make_policy(spec.for_context(options_.depth));
      Json row = {{"policy", spec.label}};
      for (const BenchmarkRow& rate : measure_rates(model_.evaluated.model, *policy, rates)) {
        row[rate.kind] = rate.median;
        const double full = section.rows.empty() ? rate.median : section.rows[0].at(rate.kind).get<double>();
        row[rate.kind + "_ratio"] = rate.median / full;
        if (rate.kind == "decode")
          row["bytes_per_token"] = static_cast<double>(rate.kv_bytes) / static_cast<double>(rate.batch * rate.depth);
      }
      section.rows.push_back(std::move(row));
      if (progress_.progress) progress_.progress(static_cast<double>(i + 1) / static_cast<double>(indices.size()));
    }
    return on_page(std::move(section), indices);
  }

 private:
  // Returns the progress of part `i` of `n` of a topic.
  Progress part(size_t i, size_t n) const {
    if (!progress_.progress) return nullptr;
    return [this, i, n](double done) { progress_.progress((static_cast<double>(i) + done) / static_cast<double>(n)); };
  }

  // Repeats the values of a section, which has a row or several in turn for each of `indices`, for equal rows.
  EvaluationReport on_page(EvaluationReport section, std::span<const size_t> indices) const {
    if (indices.empty()) return section;
    const size_t each = section.rows.size() / indices.size();
    std::vector<Json> shown;
    for (const ReportRow& row : rows_) {
      const auto found = std::find(indices.begin(), indices.end(), row.same_as);
      if (found == indices.end() || !row.in_tasks) continue;
      for (size_t i = 0; i < each; ++i) {
        shown.push_back(section.rows[static_cast<size_t>(found - indices.begin()) * each + i]);
        shown.back()["policy"] = row.spec.label;
      }
    }
    section.rows = std::move(shown);
    section.x_key.clear();  // no chart
    return section;
  }

  static std::string of_found(const Json& row) {
    const double found = row.at("found"), full = row.at("full_found");
    if (row.at("policy") == "full") return formatted("%.0f of %.0f", found, row.at("items").get<double>());
    if (full == 0) return "-";
    const double error = row.at("of_found_error").is_number() ? row.at("of_found_error").get<double>() : 0;
    const std::string deviation = std::isfinite(error) ? formatted(" ± %.0f", error) : "";
    return formatted("%.0f", 100 * found / full) + deviation + formatted(" (%.0f of %.0f)", found, full);
  }

  const ReportModel& model_;
  const std::vector<ReportText>& texts_;
  const ModelReportOptions& options_;
  const ReportProgress& progress_;
  std::vector<ReportRow> rows_;
};

std::string chat_as_text(const Json& messages) {
  std::string text;
  for (const Json& message : messages)
    text += message.at("role").get<std::string>() + ": " + message.at("content").get<std::string>() + "\n\n";
  return text;
}

}  // namespace

ModelReportOptions ModelReportOptions::quick() {
  ModelReportOptions options;
  options.context = 1024;
  options.from = 512;
  options.prompts = 1;
  options.problems = 4;
  options.depth = 1024;
  return options;
}

std::function<std::string(const Json& messages, bool open)> chat_renderer(const ReportModel& model) {
  if (model.chat_template == nullptr) return nullptr;
  const auto content = [&](std::optional<TokenId> token) {
    return token ? model.tokenizer.token_content(*token) : std::string();
  };
  const Json variables = {{"tools", nullptr},
                          {"documents", nullptr},
                          {"bos_token", content(model.tokenizer.bos())},
                          {"eos_token", content(model.tokenizer.eos())}};
  return [chat = model.chat_template, variables](const Json& messages, bool open) {
    Json context = variables;
    context["messages"] = messages;
    context["add_generation_prompt"] = open;
    return chat->render(context);
  };
}

std::vector<ReportText> shipped_texts(const ReportModel& model) {
  std::vector<ReportText> texts(3);
  texts[0].kind = "prose";
  texts[0].source = "excerpts of public-domain novels";
  texts[1].kind = "code";
  texts[1].source = "C++ and Python sources of this project";
  texts[2].kind = "chat";
  texts[2].source = "a conversation written for this project";
  for (const EmbeddedFile& text : evaluation_texts()) {
    if (text.file == "evaluation/chat.json") {
      const Json messages = Json::parse(text.text());
      const auto render = chat_renderer(model);
      texts[2].source += render ? ", in the model's chat template" : ", as plain text";
      texts[2].tokens =
          model.tokenizer.encode(render ? render(messages, false) : chat_as_text(messages), {false, true});
    } else {
      const size_t i = text.file == "evaluation/prose.txt" ? 0 : 1;
      texts[i].tokens = model.tokenizer.encode(text.text(), {false, false});
    }
  }
  return texts;
}

std::vector<ReportRow> report_rows(const ReportModel& model, const ModelReportOptions& options) {
  std::vector<ReportRow> rows;
  if (options.kv_cache.empty()) {
    rows = default_rows();
  } else {
    for (PolicySpec& spec : parse_policy_list(options.kv_cache)) rows.push_back({std::move(spec), ""});
  }
  std::map<std::string, size_t> known;
  for (size_t i = 0; i < rows.size(); ++i) {
    ReportRow& row = rows[i];
    row.in_tasks = row.in_tasks || options.all_rows;
    check_row(model, options.context, &row);
    row.same_as = i;
    if (!row.runs || row.remark.starts_with("stands in")) continue;
    const auto [same, is_new] = known.emplace(identity_of(row.spec, options.context), i);
    // A preset comes before the policy that it names, and is measured for both.
    row.same_as = same->second;
    if (!is_new && row.remark.empty()) row.remark = "the same as " + rows[same->second].spec.label;
  }
  return rows;
}

ReportPage measure_model(const ReportModel& model, const std::vector<ReportText>& texts,
                         const ModelReportOptions& options, const ReportProgress& progress) {
  if (texts.empty()) throw EvaluationError("text: expected at least one text, found none");
  const Measurement measurement(model, texts, options, progress);
  struct Topic {
    const char *name, *title;
    EvaluationReport (Measurement::*measure)() const;
  };
  constexpr Topic kTopics[] = {{"divergence", "Bytes and divergence", &Measurement::divergence},
                               {"reasoning", "Long reasoning", &Measurement::reasoning},
                               {"agent", "Agent traces", &Measurement::agent},
                               {"recall", "Recall", &Measurement::recall},
                               {"speed", "Speed", &Measurement::speed}};
  ReportPage page;
  page.title = "What each KV-cache policy costs on " + model.evaluated.model.config().name;
  std::string sources;
  for (const ReportText& text : texts) sources += (sources.empty() ? "" : "; ") + text.kind + ": " + text.source;
  page.notes = {
      "Texts: " + sources + ". Neither this project nor its calibration is fitted to them.",
      "Rows marked as simulated are formats of other programs. A full cache holds the values that the format would "
      "give "
      "back, rounded to the type of the cache, and the bytes are those that the format takes, with scales and exact "
      "parts. SnapKV is this project's policy snapkv. Expected Attention is not measured."};
  for (const Topic& topic : kTopics) {
    if (std::find(options.topics.begin(), options.topics.end(), topic.name) == options.topics.end()) continue;
    if (progress.on_topic) progress.on_topic(topic.name);
    try {
      page.sections.push_back((measurement.*topic.measure)());
    } catch (const EvaluationError& error) {
      page.sections.push_back(unmeasured(topic.title, error.what()));
    }
    if (progress.on_page) progress.on_page(page);
  }
  return page;
}

}  // namespace smartkv
