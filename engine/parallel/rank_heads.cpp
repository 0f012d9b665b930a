#include "engine/parallel/rank_heads.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/weights/sharded_weights.h"

namespace smartkv {

int64_t cache_failure(const std::exception_ptr& failure) {
  try {
    if (failure != nullptr) std::rethrow_exception(failure);
    return kCacheIsFine;
  } catch (const std::bad_alloc&) {
    return kCacheHadNoMemory;
  } catch (...) {
    return kCacheFailed;
  }
}

std::exception_ptr failure_elsewhere(int64_t cache_failure) {
  if (cache_failure == kCacheIsFine) return nullptr;
  if (cache_failure == kCacheHadNoMemory) return std::make_exception_ptr(std::bad_alloc());
  return std::make_exception_ptr(CacheError("the KV cache of another rank failed; see its message in the log"));
}

RankHeads::RankHeads(RankGroup& ranks, int64_t n_kv_heads)
    : ModelHeads(shard_sizes(n_kv_heads, ranks.size()), ranks.rank()), group_(ranks) {}

// Exchanges one message per rank. A message begins with the rank's status, in one byte.
std::vector<std::vector<uint8_t>> RankHeads::tell(int64_t status, std::span<const std::byte> own) {
  std::vector<uint8_t> message(1 + own.size());
  message[0] = static_cast<uint8_t>(status);
  if (!own.empty()) std::memcpy(message.data() + 1, own.data(), own.size());
  return group_.gather(message);
}

std::vector<std::vector<std::byte>> RankHeads::exchange(std::span<const std::byte> own) {
  if (over_) throw std::logic_error("exchange: expected a compaction boundary that all ranks commit together");
  std::vector<std::vector<std::byte>> all;
  int64_t worst = kCacheIsFine;
  for (const std::vector<uint8_t>& message : tell(kCacheIsFine, own)) {
    worst = std::max<int64_t>(worst, message.at(0));
    const std::span<const std::byte> told = std::as_bytes(std::span(message)).subspan(1);
    all.emplace_back(told.begin(), told.end());
  }
  if (worst == kCacheIsFine) return all;
  over_ = true;
  std::rethrow_exception(failure_elsewhere(worst));
}

void RankHeads::together(const std::function<void()>& change) {
  over_ = false;
  std::exception_ptr failure;
  try {
    change();
    exchange({});  // waits until the other ranks have changed their parts, or learns that one has failed
  } catch (const RankError&) {
    over_ = true;
    throw;
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure != nullptr && !over_) tell(cache_failure(failure), {});
  over_ = true;
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace smartkv
