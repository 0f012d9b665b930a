// Measures the speed-up of speculative decoding through the engine, so that every cost of a request counts. Each output
// is compared with that of plain decoding. They must be equal at any temperature.
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
  EngineOptions engine;                  // prefill_chunk and max_sequences are raised if the rows need it
  std::vector<std::string> workloads;    // names (speculation_workloads.h); empty for all, "depth" only with a text
  std::vector<nlohmann::json> methods;   // values of the field "speculative"; empty for the workload's default methods
  std::vector<int64_t> depths = {4096};  // workload "depth": prompt tokens of each sequence
  // Sequences that decode side by side. Empty for 1, and also 8 in workload "depth".
  std::vector<int64_t> sequences;
  std::filesystem::path text;        // text for workload "depth"
  std::optional<float> temperature;  // replaces the temperatures of the workloads
  int64_t tokens = 128;              // most tokens that a sequence decodes
  int repetitions = 3;               // repetitions of plain decoding and the method, in turn
};

struct SpeculationRow {
  std::string workload;
  nlohmann::json method;
  float temperature = 0;
  int64_t sequences = 1, depth = 0;     // depth: mean number of prompt tokens
  int64_t drafted = 0, accepted = 0;    // tokens over all repetitions
  double tokens_per_pass = 0;           // decoded tokens per pass and sequence; plain decoding yields 1
  double plain = 0, speculative = 0;    // median of decoded tokens per second over all sequences
  double speedup = 0, speedup_min = 0;  // median and minimum of the repetitions' ratios
  // Largest speed-up that the memory traffic of method "self" allows if every draft is accepted; 0 for other methods
  // and for runs too short to observe the caches. A round of g drafted tokens yields g + 1 tokens. It reads the draft's
  // weights and caches g times, and the model's own once, as a plain pass does:
  //   bound = (g + 1) B / (g D + B),  B = weights + caches, D = the draft's weights + caches, in bytes.
  double bound = 0;
  std::string difference = {};  // first place where the output differs from plain decoding; empty if identical

  double acceptance() const { return drafted == 0 ? 0 : static_cast<double>(accepted) / static_cast<double>(drafted); }
};

struct SpeculationReport {
  std::string model, cpu_level;
  int threads = 0;
  std::vector<SpeculationRow> rows;

  bool identical() const;  // whether every row's output equals that of plain decoding
  nlohmann::ordered_json to_json() const;
  std::string to_table() const;
};

// Returns a short label for a method, such as "self(k4v4, int4)".
std::string method_label(const nlohmann::json& method);

using OnSpeculationRow = std::function<void(const SpeculationRow&)>;

// Loads the model, with a 4-bit copy if a method drafts with it, and measures all rows. Throws the exceptions of
// Engine::create, RequestError for a bad method, and std::invalid_argument for other options.
SpeculationReport run_speculation_benchmark(const SpeculationBenchmarkOptions& options,
                                            const OnSpeculationRow& on_row = nullptr);

// Measures all rows on an existing engine. Throws as above.
SpeculationReport benchmark_speculation(Engine& engine, const SpeculationBenchmarkOptions& options,
                                        const OnSpeculationRow& on_row = nullptr);

}  // namespace smartkv
