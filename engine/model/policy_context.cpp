#include "engine/model/policy_context.h"

namespace smartkv {

SlidingWindow sliding_window(const ModelConfig& config) {
  return {config.sliding_window, config.window_layers.empty()};
}

PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads,
                             const GateSources& gates) {
  PolicyContext context{shape, PagePool::create(shape, model.kv_backend()), threads};
  context.rope = [&model](int64_t position, float* cos, float* sin) { model.rope_angles(position, cos, sin); };
  context.load_gate = [set = std::make_shared<const GateSet>(gates, model.config())](const std::string& name) {
    return set->find(name);
  };
  context.heads = model.heads();
  context.window = sliding_window(model.config());
  return context;
}

}  // namespace smartkv
