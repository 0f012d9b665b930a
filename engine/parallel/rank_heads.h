// Lets policies decide over the KV heads of all tensor-parallel ranks, and makes a cache that fails on one rank fail on
// all.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "cache/model_heads.h"
#include "engine/parallel/rank_group.h"

namespace smartkv {

// The status of a cache as ranks report it to each other. Larger is worse.
inline constexpr int64_t kCacheIsFine = 0, kCacheFailed = 1, kCacheHadNoMemory = 2;
// Returns the status for an exception thrown on this rank; null means kCacheIsFine.
int64_t cache_failure(const std::exception_ptr& failure);
// Returns an exception for another rank's status. Null for kCacheIsFine.
std::exception_ptr failure_elsewhere(int64_t cache_failure);

class RankHeads final : public ModelHeads {
 public:
  RankHeads(RankGroup& ranks, int64_t n_kv_heads);  // `ranks` outlives this

  // REQUIRES: called within together().
  std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> own) override;

  // Collective. Calls `change` on all ranks to change their parts of a cache; `change` may call exchange(). If it fails
  // on one rank, together() throws on all: the exception itself where it was thrown, failure_elsewhere() on the other
  // ranks. No rank waits for one that has failed. Throws RankError as soon as a rank is gone.
  void together(const std::function<void()>& change);

 private:
  std::vector<std::vector<uint8_t>> tell(int64_t status, std::span<const std::byte> own);

  RankGroup& group_;
  bool over_ = true;  // exchange() is not allowed: outside together(), or a rank has failed and all ranks know
};

}  // namespace smartkv
