#include "cache/policy.h"

#include "kernels/task_errors.h"
#include "kernels/thread_pool.h"

namespace smartkv {

int64_t PolicyContext::workers() const { return threads == nullptr ? 1 : threads->size(); }

void PolicyContext::for_each(int64_t n, const std::function<void(int64_t)>& task) const {
  TaskErrors errors;
  const auto guarded = [&](int64_t i) { errors.run([&] { task(i); }); };
  if (threads != nullptr) {
    threads->parallel_for(n, guarded);
  } else {
    for (int64_t i = 0; i < n; ++i) guarded(i);
  }
  errors.rethrow();
}

std::unique_ptr<SequenceCache> KvCachePolicy::load(StateReader* /*in*/) const {
  throw CacheError("state: \"" + std::string(name()) + "\" has none for files");
}

}  // namespace smartkv
