#include "cache/policy.h"

#include "kernels/task_errors.h"
#include "kernels/thread_pool.h"

namespace smartkv {

int64_t PolicyContext::workers() const { return threads == nullptr ? 1 : threads->size(); }

CacheShape PolicyContext::whole_shape() const {
  CacheShape whole = shape;
  whole.n_kv_heads = all_kv_heads();
  return whole;
}

void PolicyContext::sum(std::span<double> values) const {
  if (ranks() == 1) return;
  const std::vector<std::vector<double>> all = gather(std::vector<double>(values.begin(), values.end()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 0;
    for (const std::vector<double>& of_rank : all) values[i] += of_rank.at(i);
  }
}

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
  throw CacheError("state: policy \"" + std::string(name()) + "\" has no state for files");
}

}  // namespace smartkv
