// Measures the speed of the model alone: prefill and decode at several depths and batch sizes, and the limits of the
// machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "engine/model/model.h"
#include "engine/model/model_options.h"

namespace smartkv {

struct BenchmarkOptions {
  ModelOptions model;
  nlohmann::json kv_cache;                       // null for "full"
  std::vector<int64_t> prompts = {512};          // tokens of a prefill
  std::vector<int64_t> depths = {0, 4096};       // tokens already in the cache
  std::vector<int64_t> batches = {1, 4, 8, 16};  // sequences that decode side by side
  int64_t decode_tokens = 32;                    // tokens decoded per sequence
  int64_t prefill_chunk = 512;                   // most tokens of a prefill pass
  int repetitions = 3;                           // measured repetitions, after one that warms up
  bool limits = false;                           // also measure bandwidth and FLOP/s of the machine
};

struct BenchmarkRow {
  std::string kind;                          // "prefill" or "decode"
  int64_t depth = 0, batch = 1, tokens = 0;  // tokens: computed in one repetition, over all sequences
  double best = 0, median = 0;               // tokens per second
  int64_t kv_bytes = 0;                      // bytes held by all sequences at the end, on all ranks
  double limit = 0;                          // tokens per second that the machine's limits allow; 0 if not measured
};

struct MachineLimits {
  double read_gb_per_s = 0;       // all threads read 512 MiB in order
  double read_rows_gb_per_s = 0;  // all threads read a random quarter of its 256-byte rows
  double bf16_gflops = 0;         // all threads multiply 512 rows by a [3072, 576] matrix in bf16
  double int8_gops = 0;           // the same with a matrix in int8
};

struct BenchmarkReport {
  std::string model, cpu_level, backend, dtype;
  int threads = 0, tensor_parallel = 1;
  double load_s = 0;
  // Bytes of the weights on all ranks, and resident bytes of this process after the last row.
  int64_t weight_bytes = 0, resident_bytes = 0;
  std::vector<BenchmarkRow> rows;
  MachineLimits limits;  // zeros unless BenchmarkOptions::limits is set

  nlohmann::ordered_json to_json() const;
  std::string to_table() const;
};

// Loads the model and measures all rows. Calls `on_row` after each. Throws the exceptions of loading a model, and
// RankError.
BenchmarkReport run_benchmark(const BenchmarkOptions& options,
                              const std::function<void(const BenchmarkRow&)>& on_row = nullptr);

// Measures the rows of a loaded model with one policy, without limits. Uses the options from `prompts` to
// `repetitions`.
std::vector<BenchmarkRow> measure_rates(Model& model, const KvCachePolicy& policy, const BenchmarkOptions& options,
                                        const std::function<void(const BenchmarkRow&)>& on_row = nullptr);

}  // namespace smartkv
