// A model whose KV heads and MLPs are cut into parts, one for each of several processes (tensor parallel, Shoeybi et al. 2019).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "engine/gates/gate_set.h"
#include "engine/model/llama.h"
#include "engine/parallel/rank_group.h"
#include "kernels/thread_pool.h"

namespace smartkv {

// What all ranks load. threads, of all ranks together, are shared by those of a CPU.
struct RankedModelOptions {
  std::filesystem::path model;
  LlamaOptions llama;
  GateFiles gates, channel_worth;
  int ranks = 1, threads = 1;
};

// Throws ModelError naming tensor_parallel, for what does not go with more than one rank.
void check_ranks(const RankedModelOptions& options);

// Of `threads` in all, those of a rank: one at least.
int threads_of_rank(int threads, int rank, int ranks);
// Of rank `rank`, when rank 0's is `device`: a GPU of its own for each.
std::string device_of_rank(const std::string& device, int rank);

// A socket that listens on a port of the loopback interface, and the place of rank 0. Throws RankError.
RankPlace listen_on_loopback(int ranks);

// Starts the other ranks, loads all parts, and returns the whole model. weights: of options.model. pool: rank 0's. Throws ModelError,
// RankError.
std::unique_ptr<Model> load_ranked(const Weights& weights, const RankedModelOptions& options, ThreadPool& pool,
                                   const std::function<void(double)>& progress = nullptr);

// The caches of rank 0's part.
CacheShape ranked_cache_shape(const ModelConfig& config, const RankedModelOptions& options);

// What such a process runs: kRankCommand (rank_processes.h) with these arguments. Returns the exit status.
int run_rank(std::span<const char* const> arguments);

}  // namespace smartkv
