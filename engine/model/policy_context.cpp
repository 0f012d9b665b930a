#include "engine/model/policy_context.h"

namespace smartkv {

PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads) {
  PolicyContext context{shape, PagePool::create(shape), threads};
  context.rope = [&model](int64_t position, float* cos, float* sin) { model.rope_angles(position, cos, sin); };
  return context;
}

}  // namespace smartkv
