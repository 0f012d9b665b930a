// How the KV heads of a model are divided among tensor-parallel ranks. Each rank is a process that holds the caches of
// some of the heads (engine/parallel/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// Says which rank has which KV heads, and lets a policy that decides over all heads learn what the other ranks hold.
class ModelHeads {
 public:
  // of_ranks: number of KV heads of each rank, in the order of ranks. Rank 0 has at least as many as any other. rank:
  // the rank of this process.
  ModelHeads(std::vector<int64_t> of_ranks, int64_t rank) : of_ranks_(std::move(of_ranks)), rank_(rank) {}
  virtual ~ModelHeads() = default;

  int64_t ranks() const { return static_cast<int64_t>(of_ranks_.size()); }
  int64_t rank() const { return rank_; }
  int64_t of_rank(int64_t rank) const { return of_ranks_[static_cast<size_t>(rank)]; }
  // Returns the index, among the model's KV heads, of the first one that `rank` has.
  int64_t first(int64_t rank) const {
    int64_t n = 0;
    for (int64_t r = 0; r < rank; ++r) n += of_rank(r);
    return n;
  }
  // Returns the number of KV heads of the model.
  int64_t all() const { return first(ranks()); }

  // Sends `own` to all ranks and returns what each rank sent, in the order of ranks. Collective: all ranks call it
  // equally often and in the same order, while a boundary of a policy that exchanges() is committed, on the thread that
  // commits. Throws CacheError if the cache of another rank has failed.
  virtual std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> own) {
    (void)own;
    throw CacheError("exchange: expected several ranks, found one");
  }

 private:
  std::vector<int64_t> of_ranks_;
  int64_t rank_;
};

}  // namespace smartkv
