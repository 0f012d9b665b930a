// What speculative decoding wins, measured through the engine: every cost of a request counts, and every output is
// compared with plain decoding's, which it has to be at any temperature.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace smartkv {

struct SpeculationBenchmarkOptions {
  EngineOptions engine;  // of what is loaded; prefill_chunk and max_sequences are raised to what the rows need
  std::vector<std::string> workloads;    // speculation_workloads.h; empty: all, "depth" only with a text
  std::vector<nlohmann::json> methods;   // as the field "speculative"; empty: those that suit the workload
  std::vector<int64_t> depths = {4096};  // of workload "depth": prompt tokens of each sequence
  std::vector<int64_t> sequences;        // decoding side by side; empty: 1, and at depth 8 too
  std::filesystem::path text;            // of workload "depth"
  std::optional<float> temperature;      // instead of the workloads' own
  int64_t tokens = 128;                  // a sequence decodes at most
  int repetitions = 3;                   // of plain decoding and the method in turn
};

struct SpeculationRow {
  std::string workload;
  nlohmann::json method;
  float temperature = 0;
  int64_t sequences = 1, depth = 0;      // depth: prompt tokens, the mean
  int64_t drafted = 0, accepted = 0;     // tokens, over all repetitions
  double tokens_per_pass = 0;            // of a sequence; plain: 1
  double plain = 0, speculative = 0;     // decoded tokens per second over all sequences, the medians
  double speedup = 0, speedup_min = 0;   // of the repetitions' ratios: median and minimum
  // Most that the memory traffic of method "self" allows, were every draft accepted; 0: other methods. A round of g drafted
  // tokens makes g + 1: it reads the draft's weights and caches g times, and the model's own once, as a plain pass does:
  //   bound = (g + 1) B / (g D + B),  B = weights + caches, D = the draft's weights + caches, bytes.
  double bound = 0;
  std::string difference = {};           // where the output parts from plain decoding's; empty: they are identical

  double acceptance() const { return drafted == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(drafted); }
};

struct SpeculationReport {
  std::string model, cpu_level;
  int threads = 0;
  std::vector<SpeculationRow> rows;

  bool identical() const;
  nlohmann::ordered_json to_json() const;
  std::string to_table() const;
};

// "self(k4v4, int4)": a method in a few words.
std::string method_label(const nlohmann::json& method);

using OnSpeculationRow = std::function<void(const SpeculationRow&)>;

// Loads the model, with its 4-bit copy where a method drafts on it. Throws what Engine::create throws, RequestError for
// a method, std::invalid_argument for other options.
SpeculationReport run_speculation_benchmark(const SpeculationBenchmarkOptions& options,
                                            const OnSpeculationRow& on_row = nullptr);

// The same over an engine that is there.
SpeculationReport benchmark_speculation(Engine& engine, const SpeculationBenchmarkOptions& options,
                                        const OnSpeculationRow& on_row = nullptr);

}  // namespace smartkv
