#include "engine/model/policy_context.h"

#include <map>
#include <mutex>

#include "engine/gates/gate_file.h"

namespace smartkv {
namespace {

// Opens each file once, for as long as a policy holds its gates.
class Gates {
 public:
  explicit Gates(const ModelConfig& model) : model_(model) {}

  std::shared_ptr<const Gate> load(const std::string& file) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<const Gate>& held = held_[file];
    std::shared_ptr<const Gate> gate = held.lock();
    if (!gate) held = gate = load_gate(file, model_);
    return gate;
  }

 private:
  const ModelConfig& model_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<const Gate>> held_;
};

}  // namespace

PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads) {
  PolicyContext context{shape, PagePool::create(shape), threads};
  context.rope = [&model](int64_t position, float* cos, float* sin) { model.rope_angles(position, cos, sin); };
  context.load_gate = [gates = std::make_shared<Gates>(model.config())](const std::string& file) {
    return gates->load(file);
  };
  return context;
}

}  // namespace smartkv
