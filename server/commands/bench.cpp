#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "engine/benchmark/benchmark.h"
#include "engine/benchmark/quality.h"
#include "server/commands/command.h"

namespace smartkv {

namespace {

struct Arguments {
  BenchmarkOptions speed;
  QualityOptions quality;
  std::string model, text, kv_cache;
  bool measure_quality = false, json = false;
};

// A policy's name, or its JSON object.
nlohmann::json policy_spec(const std::string& text) {
  if (text.empty()) return nullptr;
  return text.starts_with('{') ? nlohmann::json::parse(text) : nlohmann::json(text);
}

int run_quality(Arguments& arguments) {
  arguments.quality.model = arguments.model;
  arguments.quality.text = arguments.text;
  arguments.quality.threads = arguments.speed.threads;
  const bool show = isatty(STDERR_FILENO) != 0;
  const QualityReport report = measure_quality(arguments.quality, [&](double done) {
    if (show) std::fprintf(stderr, "\r%3.0f%%%s", 100.0 * done, done >= 1.0 ? "\r    \r" : "");
  });
  std::cout << (arguments.json ? report.to_json().dump(2) + "\n" : report.to_table());
  return kOk;
}

int bench(Arguments& arguments) {
  if (arguments.measure_quality) return run_quality(arguments);
  arguments.speed.model = arguments.model;
  arguments.speed.kv_cache = policy_spec(arguments.kv_cache);
  const bool show = isatty(STDERR_FILENO) != 0;
  const BenchmarkReport report = run_benchmark(arguments.speed, [&](const BenchmarkRow& row) {
    if (!show) return;
    std::fprintf(stderr, "%-8s depth %6ld  batch %3ld  %10.1f tokens/s\n", row.kind.c_str(), static_cast<long>(row.depth),
                 static_cast<long>(row.batch), row.best);
  });
  std::cout << (arguments.json ? report.to_json().dump(2) + "\n" : report.to_table());
  return kOk;
}

constexpr const char* kExamples = R"(Rates are tokens per second over all sequences: the best and the median of the repetitions. Each sequence has a cache of
its own, filled with random tokens up to the depth.
Examples:
  smartkv bench --model model.gguf
  smartkv bench --model model.gguf --weights int4 --depths 0,4096,8000 --batches 1,16 --limits
  smartkv bench --model model.gguf --quality --text book.txt)";

}  // namespace

std::function<int()> setup_bench(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  BenchmarkOptions& speed = arguments->speed;
  QualityOptions& quality = arguments->quality;
  app.add_option("--model", arguments->model, "GGUF file or Hugging Face folder")->required();
  app.add_option("--prompts", speed.prompts, "Lengths of the prefills")->delimiter(',')->expected(0, -1)->capture_default_str();
  app.add_option("--depths", speed.depths, "Tokens that are in the cache already")->delimiter(',')->capture_default_str();
  app.add_option("--batches", speed.batches, "Sequences that decode side by side")->delimiter(',')->expected(0, -1)->capture_default_str();
  app.add_option("--decode-tokens", speed.decode_tokens, "Tokens that each sequence decodes")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--prefill-chunk", speed.prefill_chunk, "Prompt tokens of one pass")->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--repetitions", speed.repetitions, "Measured runs of each row, after one that warms up")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--dtype", speed.dtype, "Activations and KV cache: auto, bf16 or f32")->capture_default_str();
  app.add_option("--weights", speed.weights, "Storage of the weights: auto, bf16, f32, int8 or int4")->capture_default_str();
  app.add_option("--threads", speed.threads, "0: every core that this process may use")->check(CLI::Range(0, 64))->capture_default_str();
  app.add_option("--kv-cache", arguments->kv_cache, "Cache policy: a name, or a JSON object");
  app.add_flag("--limits", speed.limits, "Measure the machine's bandwidth and FLOP/s, and how near each row comes to them");
  auto* measure = app.add_flag("--quality", arguments->measure_quality, "Measure what each weight format does to the answer, against bf16");
  auto* text = app.add_option("--text", arguments->text, "With --quality: the text to measure on")->needs(measure);
  measure->needs(text);
  app.add_option("--context", quality.context, "With --quality: tokens of a window")->check(CLI::Range(1, 1 << 20))->capture_default_str()->needs(measure);
  app.add_option("--windows", quality.windows, "With --quality: windows, spread over the text")->check(CLI::Range(1, 1 << 20))->capture_default_str()->needs(measure);
  app.add_flag("--json", arguments->json, "Print JSON");
  app.footer(kExamples);
  return [arguments] { return bench(*arguments); };
}

}  // namespace smartkv
