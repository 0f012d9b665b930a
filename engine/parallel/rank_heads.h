// The KV heads of ranks, to policies that decide over all of them, and what becomes of a cache that fails on one rank.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "cache/model_heads.h"
#include "engine/parallel/rank_group.h"

namespace smartkv {

// What ranks tell each other of a cache.
inline constexpr int64_t kCacheIsFine = 0, kCacheFailed = 1, kCacheHadNoMemory = 2;
int64_t cache_failure(const std::exception_ptr& failure);    // of what was thrown here
std::exception_ptr failure_elsewhere(int64_t cache_failure);  // null: kCacheIsFine

class RankHeads final : public ModelHeads {
 public:
  RankHeads(RankGroup& ranks, int64_t n_kv_heads);  // ranks outlive it

  // Within together().
  std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> own) override;

  // Collective: all ranks change their parts of a cache, which may exchange(). Where that fails on one it throws on all: what was
  // thrown here, else failure_elsewhere(); nobody waits for a rank that has failed. Throws RankError as soon as a rank is gone.
  void together(const std::function<void()>& change);

 private:
  std::vector<std::vector<uint8_t>> tell(int64_t status, std::span<const std::byte> own);

  RankGroup& group_;
  bool over_ = true;  // a rank has failed, and all know; or nothing is changed together
};

}  // namespace smartkv
