#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <stdexcept>

#include "engine/log.h"
#include "lab/benchmark/benchmark.h"
#include "lab/benchmark/quality.h"
#include "lab/benchmark/speculation_benchmark.h"
#include "lab/commands/bench_parts.h"
#include "lab/commands/setups.h"
#include "server/commands/command.h"
#include "server/commands/enum_flag.h"
#include "server/commands/hub_models.h"
#include "server/commands/number_flag.h"
#include "server/commands/options.h"

namespace smartkv {

namespace {

struct BenchArguments {
  BenchmarkOptions speed;
  QualityOptions quality;
  SpeculationBenchmarkOptions speculation;
  std::string text, kv_cache;
  std::vector<std::string> methods, gates;
  BenchPart serving, longer;
  std::pair<CLI::App*, std::function<int()>> agents;
  CLI::Option* depths = nullptr;  // the option --depths, whose default depends on the measurement
  bool measure_quality = false, measure_speculation = false, json = false;
};

int run_quality(BenchArguments& arguments) {
  arguments.quality.model = arguments.speed.model;
  arguments.quality.text = arguments.text;
  const bool show = isatty(STDERR_FILENO) != 0;
  const QualityReport report = measure_quality(arguments.quality, [&](double done) {
    if (show) std::fprintf(stderr, "\r%3.0f%%%s", 100.0 * done, done >= 1.0 ? "\r    \r" : "");
  });
  std::cout << (arguments.json ? report.to_json().dump(2) + "\n" : report.to_table());
  return kOk;
}

// Returns kRuntimeError if a method changes an output of plain decoding.
int run_speculation(BenchArguments& arguments) {
  SpeculationBenchmarkOptions& options = arguments.speculation;
  options.engine.model = arguments.speed.model;
  options.engine.kv_cache = name_or_object("--kv-cache", arguments.kv_cache);
  options.text = arguments.text;
  options.repetitions = arguments.speed.repetitions;
  if (arguments.depths->count() > 0) options.depths = arguments.speed.depths;
  for (const std::string& method : arguments.methods) options.methods.push_back(name_or_object("--methods", method));
  set_log_level(LogLevel::kWarning);
  const bool show = isatty(STDERR_FILENO) != 0;
  try {
    const SpeculationReport report = run_speculation_benchmark(options, [&](const SpeculationRow& row) {
      if (!show) return;
      std::fprintf(stderr, "%-11s %s  depth %ld  sequences %ld  speed-up %.2f\n", row.workload.c_str(),
                   method_label(row.method).c_str(), static_cast<long>(row.depth), static_cast<long>(row.sequences),
                   row.speedup);
    });
    std::cout << (arguments.json ? report.to_json().dump(2) + "\n" : report.to_table());
    if (report.identical()) return kOk;
    std::cerr << "smartkv: speculative decoding changed an output\n";
    return kRuntimeError;
  } catch (const std::invalid_argument& error) {
    throw ConfigError(error.what());
  } catch (const RequestError& error) {  // a wrong method or cache policy on the command line
    if (error.kind != RequestError::Kind::kInvalid) throw;
    throw ConfigError(error.what());
  }
}

int bench(BenchArguments& arguments) {
  if (arguments.agents.first->parsed()) return arguments.agents.second();
  ModelOptions& model = arguments.speed.model;
  if (!model.path.empty()) model.path = find_model(model.path);
  for (const std::string& gate : arguments.gates) add_file("--gate", gate, &model.gates);
  const SharedBenchArguments shared{model, arguments.text, arguments.speed.repetitions, arguments.json};
  if (arguments.serving.asked->count() > 0) return arguments.serving.run(shared);
  if (arguments.longer.asked->count() > 0) return arguments.longer.run(shared);
  if (model.path.empty()) throw ConfigError("--model is required");
  if (arguments.measure_quality) return run_quality(arguments);
  if (arguments.measure_speculation) return run_speculation(arguments);
  if (!arguments.text.empty()) throw ConfigError("--text: needs --quality, --speculative, --serving or --long");
  arguments.speed.kv_cache = name_or_object("--kv-cache", arguments.kv_cache);
  const bool show = isatty(STDERR_FILENO) != 0;
  const BenchmarkReport report = run_benchmark(arguments.speed, [&](const BenchmarkRow& row) {
    if (!show) return;
    std::fprintf(stderr, "%-8s depth %6ld  batch %3ld  %10.1f tokens/s\n", row.kind.c_str(),
                 static_cast<long>(row.depth), static_cast<long>(row.batch), row.best);
  });
  std::cout << (arguments.json ? report.to_json().dump(2) + "\n" : report.to_table());
  return kOk;
}

constexpr const char* kBenchExamples =
    R"(Rates are tokens per second over all sequences: best and median of the repetitions.
Each sequence has a cache of its own, filled with random tokens up to the depth.
--speculative runs each workload with plain decoding and with a method in turn. Speed-up is the ratio of their decode
rates: the median and the minimum of the repetitions. The exit code is 1 if a method changes an output.
--serving starts `smartkv serve` for each case and policy and sends all requests of the case at once, over HTTP:
  a  64 of 200 + 1,000 tokens           b  64 of 2,000 + 200       c  64 questions of 50 + 200 about 4 texts of 2,000
  d  16 of 100 words + 64 tokens        e  24 of 200 + 600         f  24 of 1,700 + 48
  g  a request of 50 + 1 tokens behind a prompt of 8,000: time to first token, compared with the same request alone
`smartkv bench agents` measures many conversations that take turns; see its --help.
Examples:
  smartkv bench --model model.gguf
  smartkv bench --model model.gguf --weights int4 --depths 0,4096,8000 --batches 1,16 --limits
  smartkv bench --model model.gguf --backend torch --tensor-parallel 2 --kv-cache balanced
  smartkv bench --model model.gguf --quality --text book.txt
  smartkv bench --model model.gguf --speculative --text book.txt --depths 4096,8000
  smartkv bench --model model.gguf --speculative --workloads copy,chat --methods ngram '{"method": "auto", "tokens": 6}'
  smartkv bench --model model.gguf --serving --cases a,b --policies balanced,compact,gated_eviction@0.25 --plot a.svg)";

void add_speculation_options(CLI::App& app, CLI::Option* measure, BenchArguments* arguments) {
  SpeculationBenchmarkOptions& options = arguments->speculation;
  const auto option = [&](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, std::string("With --speculative: ") + help)->needs(measure);
  };
  option("--workloads", options.workloads,
         "copy, extract, code, chat, depth (needs --text), adversarial; all by default")
      ->delimiter(',');
  option("--methods", arguments->methods,
         "names or JSON objects, like a request's \"speculative\"; the default is every method that suits the workload")
      ->expected(1, -1);
  option("--sequences", options.sequences, "sequences that decode side by side; 1 by default, at depth 1 and 8")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  option("--temperature", options.temperature, "sampling temperature instead of each workload's own; 0 is greedy")
      ->check(CLI::Range(0.0, 2.0));
  option("--tokens", options.tokens, "limit of tokens that a sequence decodes")
      ->check(CLI::Range(2, 100000))
      ->capture_default_str();
  option("--draft-model", options.engine.draft_model, "the smaller model of method draft_model");
}

}  // namespace

std::function<int()> setup_bench(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  BenchmarkOptions& speed = arguments->speed;
  ModelOptions& model = speed.model;
  QualityOptions& quality = arguments->quality;
  app.add_option("--model", model.path, "GGUF file, Hugging Face folder or name (ORG/NAME; required)");
  app.add_option("--prompts", speed.prompts, "Prompt lengths of the prefill measurements")
      ->delimiter(',')
      ->expected(0, -1)
      ->capture_default_str();
  arguments->depths = app.add_option("--depths", speed.depths,
                                     "Tokens in the cache before a measurement; with --speculative the default is 4096")
                          ->delimiter(',')
                          ->capture_default_str();
  app.add_option("--batches", speed.batches, "Sequences that decode side by side")
      ->delimiter(',')
      ->expected(0, -1)
      ->capture_default_str();
  add_number_flag(app, "--decode-tokens", speed.decode_tokens, "Tokens that each sequence decodes", 1, 100000);
  add_number_flag(app, "--prefill-chunk", speed.prefill_chunk, "Prompt tokens of one pass", 1, 100000);
  add_number_flag(app, "--repetitions", speed.repetitions, "Measured runs of each row, after one warm-up run", 1, 1000);
  add_enum_flag(app, "--dtype", model.dtype, "Data type of activations and KV cache; f16 only with --backend torch");
  add_enum_flag(app, "--weights", model.weights, "Storage of the weights");
  auto* backend = add_enum_flag(app, "--backend", model.backend, "Backend of the matrix products");
  auto* device = app.add_option("--device", model.device,
                                "With --backend torch: device that computes and holds the caches, cpu or cuda:N")
                     ->capture_default_str()
                     ->needs(backend);
  add_enum_flag(app, "--cuda-graphs", model.cuda_graphs,
                "With --device cuda:N: run small passes, except their attention, as CUDA graphs")
      ->needs(device);
  add_number_flag(app, "--tensor-parallel", model.tensor_parallel,
                  "With --backend torch: number of processes that compute the model together, on GPUs one per GPU. "
                  "With several, the tokens in the cache are computed instead of filled in",
                  1, 256)
      ->needs(backend);
  add_number_flag(app, "--threads", model.threads,
                  "CPU threads of all processes together; 0 uses every core available to this process", 0, 64);
  app.add_option("--kv-cache", arguments->kv_cache, "Cache policy: a name, or a JSON object");
  app.add_option("--gate", arguments->gates,
                 "File of learned gates, for {\"policy\": \"gated_eviction\", \"gate\": NAME}")
      ->type_name("NAME=FILE")
      ->allow_extra_args(false);
  app.add_flag("--limits", speed.limits,
               "Measure the machine's bandwidth and FLOP/s, and the fraction that each row reaches")
      ->excludes(device);
  auto* measure =
      app.add_flag("--quality", arguments->measure_quality, "Measure the quality of each weight format against bf16");
  auto* speculative = app.add_flag("--speculative", arguments->measure_speculation,
                                   "Measure the speed-up of speculative decoding, by workload and method")
                          ->excludes(measure);
  auto* text = app.add_option(
      "--text", arguments->text,
      "Text file: to measure on (--quality), for workload depth (--speculative), to cut prompts from (--serving), or "
      "to run through the policies (--long)");
  measure->needs(text);
  add_speculation_options(app, speculative, arguments.get());
  add_number_flag(app, "--context", quality.context, "With --quality: tokens of a window", 1, 1 << 20)->needs(measure);
  add_number_flag(app, "--windows", quality.windows, "With --quality: number of windows, spread over the text", 1,
                  1 << 20)
      ->needs(measure);
  arguments->serving = setup_serving_bench(app);
  arguments->serving.asked->excludes(measure)->excludes(speculative);
  arguments->longer = setup_long_bench(app);
  arguments->longer.asked->excludes(measure)->excludes(speculative)->excludes(arguments->serving.asked);
  backend->excludes(measure)
      ->excludes(speculative)
      ->excludes(arguments->serving.asked)
      ->excludes(arguments->longer.asked);
  app.add_flag("--json", arguments->json, "Print JSON");
  arguments->agents = setup_agents_bench(app);
  app.footer(kBenchExamples);
  return [arguments] { return bench(*arguments); };
}

}  // namespace smartkv
