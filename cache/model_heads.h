// The KV heads of a model that several processes compute together, each with the caches of some of the heads (engine/parallel/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// Which rank has which heads, and how a policy that decides by all of them gets to know what the other ranks hold.
class ModelHeads {
 public:
  // of_ranks: KV heads of each rank, those of rank 0 first, which has as many as any other. rank: the one that is here.
  ModelHeads(std::vector<int64_t> of_ranks, int64_t rank) : of_ranks_(std::move(of_ranks)), rank_(rank) {}
  virtual ~ModelHeads() = default;

  int64_t ranks() const { return static_cast<int64_t>(of_ranks_.size()); }
  int64_t rank() const { return rank_; }
  int64_t of_rank(int64_t rank) const { return of_ranks_[static_cast<size_t>(rank)]; }
  int64_t first(int64_t rank) const {  // of its heads among the model's
    int64_t n = 0;
    for (int64_t r = 0; r < rank; ++r) n += of_rank(r);
    return n;
  }
  int64_t all() const { return first(ranks()); }

  // What each rank gives, in order of ranks. Collective: all ranks call it equally often, in one order, within a boundary of a
  // policy that exchanges(), on the thread that commits. Throws CacheError where another rank's cache has failed.
  virtual std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> own) {
    (void)own;
    throw CacheError("expected ranks that exchange what they hold, found none");
  }

 private:
  std::vector<int64_t> of_ranks_;
  int64_t rank_;
};

}  // namespace smartkv
