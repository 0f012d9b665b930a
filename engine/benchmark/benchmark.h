// Rates of the model alone: prefill and decode at several depths and batch sizes, and the machine's own limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

struct BenchmarkOptions {
  std::filesystem::path model;
  std::string dtype = "auto", weights = "auto", backend = "native", device = "cpu", cuda_graphs = "auto";
  int tensor_parallel = 1;                    // processes that compute the model together, of backend torch
  int threads = 0;                            // of all of them; 0: every core that this process may use
  nlohmann::json kv_cache;                    // null: "full"
  std::map<std::string, std::filesystem::path> gates = {};  // that kv_cache may name
  std::vector<int64_t> prompts = {512};       // tokens of a prefill
  std::vector<int64_t> depths = {0, 4096};    // tokens that are in the cache already
  std::vector<int64_t> batches = {1, 4, 8, 16};  // sequences that decode side by side
  int64_t decode_tokens = 32;                 // per sequence
  int64_t prefill_chunk = 512;
  int repetitions = 3;
  bool limits = false;                        // measure bandwidth and FLOP/s too
};

struct BenchmarkRow {
  std::string kind;     // "prefill" or "decode"
  int64_t depth = 0, batch = 1, tokens = 0;  // tokens of one repetition, over all sequences
  double best = 0, median = 0;               // tokens per second
  int64_t kv_bytes = 0;                      // held by all sequences at the end, on all ranks
  double limit = 0;                          // tokens per second that the machine's limits allow; 0: not measured
};

struct MachineLimits {
  double read_gb_per_s = 0;       // all threads reading 512 MiB
  double read_rows_gb_per_s = 0;  // a random quarter of its rows of 256 bytes
  double bf16_gflops = 0;         // all threads, 512 rows by [3072, 576] in bf16
};

struct BenchmarkReport {
  std::string model, cpu_level, backend, dtype;
  int threads = 0, tensor_parallel = 1;
  double load_s = 0;
  int64_t weight_bytes = 0, resident_bytes = 0;  // of all ranks; resident: of this process after the last row
  std::vector<BenchmarkRow> rows;
  MachineLimits limits;  // zeros unless asked for

  nlohmann::ordered_json to_json() const;
  std::string to_table() const;
};

// Throws what loading a model throws, and RankError. `on_row` sees each row as it is done.
BenchmarkReport run_benchmark(const BenchmarkOptions& options,
                              const std::function<void(const BenchmarkRow&)>& on_row = nullptr);

}  // namespace smartkv
