// Tensor parallelism (Shoeybi et al. 2019): the KV heads and MLPs of a model are cut into parts, one for each process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/llama.h"
#include "engine/parallel/rank_group.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// Write and read the message that tells the options to the other ranks. All ranks run the same program.
std::vector<uint8_t> options_message(const ModelOptions& options);
ModelOptions read_options(std::span<const uint8_t> message);

// Returns the share of rank `rank` in `threads`, at least 1.
int threads_of_rank(int threads, int rank, int ranks);
// Returns the device of rank `rank` if that of rank 0 is `device`. On GPUs each rank has its own.
std::string device_of_rank(const std::string& device, int rank);

// Opens a socket that listens on a port of the loopback interface. Returns it in the place of rank 0. Throws RankError.
RankPlace listen_on_loopback(int ranks);

// Starts the other ranks, loads all parts, and returns the whole model. `weights` are those of options.path,
// `pool` has the threads of rank 0, and options.threads is above 0. `progress` receives values from 0 to 1. Throws
// ModelError and RankError.
std::unique_ptr<Model> load_ranked(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                   const std::function<void(double)>& progress = nullptr);

// Returns the shape of the caches of rank 0's part. No rank has more KV heads than rank 0.
CacheShape ranked_cache_shape(const ModelConfig& config, const ModelOptions& options);

// Runs a rank's process: the command kRankCommand (rank_processes.h) with `arguments`. Returns the exit status.
int run_rank(std::span<const char* const> arguments);

}  // namespace smartkv
