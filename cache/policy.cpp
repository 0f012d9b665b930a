#include "cache/policy.h"

#include <exception>
#include <mutex>

#include "kernels/thread_pool.h"

namespace smartkv {

int64_t PolicyContext::workers() const { return threads == nullptr ? 1 : threads->size(); }

void PolicyContext::for_each(int64_t n, const std::function<void(int64_t)>& task) const {
  std::exception_ptr failure;
  std::mutex mutex;
  const auto guarded = [&](int64_t i) {  // a worker must not throw
    try {
      task(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  if (threads != nullptr) {
    threads->parallel_for(n, guarded);
  } else {
    for (int64_t i = 0; i < n; ++i) guarded(i);
  }
  if (failure) std::rethrow_exception(failure);
}

std::unique_ptr<SequenceCache> KvCachePolicy::load(StateReader* /*in*/) const {
  throw CacheError("state: \"" + std::string(name()) + "\" has none for files");
}

}  // namespace smartkv
