#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "engine/calibration/calibration.h"
#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/system_resources.h"
#include "engine/weights/model_fingerprint.h"
#include "lab/commands/eval_report.h"
#include "lab/commands/setups.h"
#include "lab/evaluation/divergence.h"
#include "lab/evaluation/drift.h"
#include "lab/evaluation/kvzip.h"
#include "lab/evaluation/recall.h"
#include "lab/evaluation/simulated_policy.h"
#include "server/commands/command.h"
#include "server/commands/enum_flag.h"
#include "server/commands/hub_models.h"
#include "server/commands/number_flag.h"
#include "server/commands/options.h"

namespace smartkv {

namespace {

struct EvalArguments {
  std::string metric, kv_cache, json, html;
  std::vector<std::string> texts;
  std::vector<std::string> gates, worth;  // each "NAME=FILE"
  ModelOptions model;
  DivergenceOptions pass;
  RecallOptions recall;
  EvalReportArguments report;
  double share = DriftOptions().share;
  // Options that only some metrics have, with the names of these metrics.
  std::vector<std::pair<const CLI::Option*, std::vector<std::string>>> special;
  std::vector<const CLI::Option*> of_facts;  // options that only the task "facts" of recall has
  // Options that replace defaults of a report.
  const CLI::Option *context = nullptr, *windows = nullptr, *from = nullptr, *lengths = nullptr;
};

// Throws ConfigError for options that the chosen metric would ignore.
void check_options(const EvalArguments& arguments) {
  for (const auto& [option, metrics] : arguments.special) {
    if (option->count() == 0 || std::find(metrics.begin(), metrics.end(), arguments.metric) != metrics.end()) continue;
    throw ConfigError(option->get_name() + ": not an option of eval " + arguments.metric);
  }
  if (arguments.metric == "report") return check_report(arguments.report);
  if (arguments.texts.size() != 1) {
    throw ConfigError("--text: expected one file for eval " + arguments.metric + ", found " +
                      std::to_string(arguments.texts.size()));
  }
  if (arguments.kv_cache.empty()) throw ConfigError("--kv-cache: required for eval " + arguments.metric);
  for (const CLI::Option* option : arguments.of_facts) {
    if (option->count() == 0 || arguments.recall.task == "facts") continue;
    throw ConfigError(option->get_name() + ": not an option of eval recall --task " + arguments.recall.task);
  }
}

std::ofstream open_output(const std::string& file) {
  std::ofstream stream;
  if (file.empty()) return stream;
  stream.open(file, std::ios::binary);
  if (!stream) throw ConfigError(file + ": cannot be opened for writing");
  return stream;
}

void write_output(std::ofstream& stream, const std::string& file, const std::string& content) {
  if (file.empty()) return;
  if (!(stream << content).flush()) throw std::runtime_error(file + ": cannot be written");
}

// Returns the policies to measure. Policies are given on the command line, so a wrong one is a ConfigError.
std::vector<PolicySpec> policies_of(const EvalArguments& arguments, const EvaluationModel& model) {
  try {
    std::vector<PolicySpec> specs = parse_policy_list(arguments.kv_cache);
    const std::vector<int64_t> contexts =
        arguments.metric == "recall" ? arguments.recall.lengths : std::vector<int64_t>{arguments.pass.context};
    for (const PolicySpec& spec : specs) {
      for (const int64_t context : contexts) {
        const nlohmann::json policy = spec.for_context(context);
        if (!is_kvzip(policy)) {
          model.make_policy(policy);
        } else if (arguments.metric == "recall") {
          check_kvzip(model.shape, policy);
        } else {
          throw CacheError(
              "kvzip: only eval recall supports this oracle, which reads each prompt twice before it "
              "evicts tokens");
        }
      }
    }
    return specs;
  } catch (const CacheError& error) {
    throw ConfigError(std::string("--kv-cache: ") + error.what());
  }
}

Progress progress_bar() {
  if (isatty(STDERR_FILENO) == 0) return nullptr;
  return [](double done) {
    constexpr int kCells = 40;
    const int filled = static_cast<int>(done * kCells);
    const std::string bar =
        std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(kCells - filled), '.');
    std::fprintf(stderr, "\r[%s] %3.0f%%%s", bar.c_str(), 100 * done, done >= 1 ? "\r\x1b[K" : "");
  };
}

EvaluationReport measure(const EvalArguments& arguments, const EvaluationModel& model, const Tokenizer& tokenizer,
                         std::span<const PolicySpec> policies, std::span<const TokenId> tokens) {
  DivergenceOptions pass = arguments.pass;
  if (arguments.metric == "recall")
    return measure_recall(model, tokenizer, policies, tokens, arguments.recall, progress_bar());
  if (arguments.metric == "drift") {
    return measure_drift(model, policies, tokens, {pass.context, pass.windows, pass.prompt_tokens, arguments.share},
                         progress_bar());
  }
  pass.divergence = arguments.metric == "divergence";
  return measure_divergence(model, policies, tokens, pass, progress_bar());
}

ModelReportOptions report_options(const EvalArguments& arguments) {
  ModelReportOptions options = arguments.report.quick ? ModelReportOptions::quick() : ModelReportOptions();
  options.kv_cache = arguments.kv_cache;
  options.all_rows = arguments.report.all_rows;
  if (!arguments.report.topics.empty()) options.topics = arguments.report.topics;
  if (arguments.report.no_speed) std::erase(options.topics, "speed");
  if (arguments.context->count() > 0) {
    options.context = arguments.pass.context;
    options.from = options.context / 2;
  }
  if (arguments.from->count() > 0) options.from = arguments.pass.from;
  if (arguments.windows->count() > 0) options.windows = arguments.pass.windows;
  if (arguments.lengths->count() > 0) options.lengths = arguments.recall.lengths;
  return options;
}

int eval(const EvalArguments& arguments) {
  check_options(arguments);
  GateSources gates;
  for (const std::string& gate : arguments.gates) add_file("--gate", gate, &gates.files);
  for (const std::string& file : arguments.worth) add_file("--worth", file, &gates.worth);
  ThreadPool threads(arguments.model.threads > 0 ? arguments.model.threads : available_cores());
  const std::filesystem::path path = find_model(arguments.model.path);
  const std::unique_ptr<Weights> weights = Weights::open(path);
  gates.identity = model_identity(*weights);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(*weights, path);
  const std::unique_ptr<ChatTemplate> chat_template = make_chat_template(load_chat_templates(*weights, path));
  const std::unique_ptr<Model> model = load_llama(*weights, arguments.model, threads);
  const CacheShape shape = llama_cache_shape(model->config(), arguments.model);
  const PolicyContext context =
      policy_context(*model, shape, &threads, gates, calibrated_on_demand(*model, *weights, threads, arguments.model));
  TensorRanges ranges;  // for simulated formats, once one needs them
  EvaluationModel evaluated{*model, threads, shape, nullptr, &context};
  evaluated.make_policy = [&](const nlohmann::json& spec) {
    if (!is_simulated(spec)) return make_policy(context, spec);
    if (ranges.k.empty() && needs_ranges(spec.value("format", ""))) {
      constexpr int64_t kRangeTokens = 1024;
      const int64_t most = std::min(kRangeTokens, model->config().context_length);
      ranges = measure_ranges(evaluated, calibration_tokens(*tokenizer, most).tokens);
    }
    return make_simulated_policy(evaluated, spec, ranges);
  };
  const ReportModel reported{evaluated, *tokenizer, chat_template.get()};
  nlohmann::ordered_json conditions = {{"model", model->config().name},
                                       {"dtype", name(arguments.model.dtype)},
                                       {"weights", stored_weights(arguments.model, *weights)},
                                       {"threads", threads.size()}};
  if (arguments.metric == "report") {
    try {
      return run_report(reported, report_texts(arguments.texts, reported), report_options(arguments), arguments.report,
                        conditions);
    } catch (const CacheError& error) {
      throw ConfigError(std::string("--kv-cache: ") + error.what());
    }
  }

  const std::vector<PolicySpec> policies = policies_of(arguments, evaluated);
  std::ofstream json = open_output(arguments.json), html = open_output(arguments.html);
  const std::string& text = arguments.texts[0];
  const std::vector<TokenId> tokens = read_tokens(text, *tokenizer);
  EvalArguments measured = arguments;
  measured.recall.render_chat = chat_renderer(reported);
  EvaluationReport report = measure(measured, evaluated, *tokenizer, policies, tokens);
  conditions["text"] = std::filesystem::path(text).filename().string();
  report.conditions.update(conditions);
  write_output(json, arguments.json, report.to_json_lines());
  write_output(html, arguments.html, report.to_html());
  std::cout << report.to_table();
  return kOk;
}

constexpr const char* kEvalExamples = R"(Metrics:
  perplexity  perplexity of the text, with compression active during the pass, as in generation
  divergence  the same pass, and the divergence of each next-token distribution from the full cache's
  drift       the model uses the full cache; per layer, the same queries also attend to the compressed cache
  recall      recall of numbers hidden in the text; the question comes after the context was compressed
  report      all presets and policies on several texts and tasks, as an HTML and a Markdown page

A policy is a name or a JSON object, alone or with @X: streaming@0.25 holds a quarter of the context's tokens,
mixed_precision@4.5 spends 4.5 bits per value. "full" is the reference and always measured. recall also supports kvzip,
an oracle that reads the context twice before it evicts tokens (Kim et al. 2025): kvzip@0.25. Formats of other programs
are simulated: {"policy": "simulated", "format": "q8_0"}, also q4_0_hadamard, fp8, nvfp4, turboquant_4, turboquant_3 and
kvarn_k4v2.
report measures the presets and policies that --kv-cache names, or all, on texts that ship with the program unless
--text KIND=FILE is given, once or several times.
Examples:
  smartkv eval divergence --model model.gguf --text book.txt --context 4096 --kv-cache streaming@0.25,k4v4 --html report.html
  smartkv eval report --model model.gguf --quick --out report.html
  smartkv eval recall --model model.gguf --text book.txt --kv-cache 'snapkv@0.25,{"policy":"streaming","tokens":512}' --lengths 1024,2048,4096)";

}  // namespace

std::function<int()> setup_eval(CLI::App& app) {
  auto arguments = std::make_shared<EvalArguments>();
  DivergenceOptions& pass = arguments->pass;
  RecallOptions& recall = arguments->recall;
  const auto only = [&](const CLI::Option* option, std::vector<std::string> metrics) {
    arguments->special.emplace_back(option, std::move(metrics));
    return option;
  };
  const std::vector<std::string> scores = {"perplexity", "divergence"}, passes = {"perplexity", "divergence", "drift"},
                                 windows = {"perplexity", "divergence", "drift", "report"},
                                 scored = {"perplexity", "divergence", "report"};
  const auto facts_only = [&](const CLI::Option* option) {
    arguments->of_facts.push_back(option);
    only(option, {"recall"});
  };
  constexpr int kMost = 1 << 20;

  app.add_option("metric", arguments->metric, "Metric to measure")
      ->required()
      ->check(CLI::IsMember({"perplexity", "divergence", "recall", "drift", "report"}));
  app.add_option("--model", arguments->model.path, "GGUF file, Hugging Face folder or name (ORG/NAME)")->required();
  app.add_option("--text", arguments->texts,
                 "UTF-8 text file. Neither the model nor a policy may have been trained on it. report: KIND=FILE, "
                 "repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  app.add_option("--kv-cache", arguments->kv_cache, "Policies, separated by commas; report: all by default");
  app.add_option("--gate", arguments->gates,
                 "File of learned gates, for {\"policy\": \"gated_eviction\", \"gate\": NAME}")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  app.add_option("--worth", arguments->worth,
                 "File of train-probe, for {\"policy\": \"channel_packed\", \"worth\": NAME}")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  arguments->context = only(add_number_flag(app, "--context", pass.context,
                                            "Tokens of a window; report: 2048, or 1024 with --quick", 1, kMost),
                            windows);
  arguments->windows = only(
      add_number_flag(app, "--windows", pass.windows, "Number of windows, spread over the text; report: 1", 1, kMost),
      windows);
  arguments->from =
      only(add_number_flag(app, "--from", pass.from,
                           "Tokens at the start of each window that are not scored; report: half of them", 0, kMost),
           scored);
  only(add_number_flag(app, "--prompt-tokens", pass.prompt_tokens,
                       "Tokens at the start of each window that policies treat as the prompt", 1, kMost),
       passes);
  arguments->lengths = only(
      add_number_flag(app, "--lengths", recall.lengths, "Lengths of the contexts in tokens; report: 1024", 1, kMost)
          ->delimiter(','),
      {"recall", "report"});
  facts_only(add_number_flag(app, "--depths", recall.depths,
                             "Positions of the requested number, as fractions of the context", 0.0, 1.0)
                 ->delimiter(','));
  only(add_number_flag(app, "--questions", recall.questions, "Minimum number of questions, over all lengths", 1, kMost),
       {"recall"});
  only(app.add_option("--task", recall.task,
                      "facts: numbers in the text; variables: chains of assignments; words: the most common words of "
                      "lists; agent: "
                      "results of tool calls in a conversation")
           ->check(CLI::IsMember(recall_tasks()))
           ->capture_default_str(),
       {"recall"});
  facts_only(app.add_option("--wording", recall.wording,
                            "Wording in which numbers are stated and asked for. Gates are trained with other wordings")
                 ->check(CLI::IsMember(recall_wordings()))
                 ->capture_default_str());
  facts_only(add_number_flag(app, "--facts-asked", recall.facts_asked,
                             "Numbers that one question asks for. The score is the fraction of correct ones",
                             int64_t{1}, kNeedles));
  only(add_number_flag(app, "--again", recall.again,
                       "Tokens of text between an answer and a repetition of its question; 0 asks only once", 0, kMost),
       {"recall"});
  only(add_number_flag(app, "--share", arguments->share, "Fraction of positions that are sampled", 1e-4, 1.0),
       {"drift"});
  add_enum_flag(app, "--dtype", arguments->model.dtype, "Data type of activations and KV cache");
  add_enum_flag(app, "--weights", arguments->model.weights, "Storage of the weights");
  add_number_flag(app, "--threads", arguments->model.threads,
                  "CPU threads; 0 uses every core available to this process", 0, 64);
  const std::vector<std::string> tables = {"perplexity", "divergence", "drift", "recall"};
  only(app.add_option("--json", arguments->json, "File for the results as JSON lines"), tables);
  only(app.add_option("--html", arguments->html, "HTML file for the table and a chart of quality against bytes"),
       tables);
  EvalReportArguments& report = arguments->report;
  only(app.add_option("--out", report.out, "HTML file of the report; a Markdown file is written beside it")
           ->capture_default_str(),
       {"report"});
  only(app.add_option("--only", report.topics, "Topics of the report, all by default")
           ->delimiter(',')
           ->check(CLI::IsMember(report_topics())),
       {"report"});
  only(app.add_flag("--quick", report.quick, "Measure less, in a few minutes for a small model"), {"report"});
  only(app.add_flag("--all-rows", report.all_rows,
                    "Measure every topic for all rows. By default only divergence is; the others are measured for the "
                    "presets and a few policies"),
       {"report"});
  only(app.add_flag("--no-speed", report.no_speed, "Leave the speed out, for a machine that is busy"), {"report"});
  app.footer(kEvalExamples);
  return [arguments] { return eval(*arguments); };
}

}  // namespace smartkv
