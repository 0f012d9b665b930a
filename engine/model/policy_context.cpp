#include "engine/model/policy_context.h"

#include "engine/gates/channel_worth.h"

namespace smartkv {

SlidingWindow sliding_window(const ModelConfig& config) { return {config.sliding_window, config.n_window_layers()}; }

PolicyContext policy_context(const Model& model, const CacheShape& shape, ThreadPool* threads, const GateSources& gates,
                             std::function<std::shared_ptr<const Sensitivity>()> sensitivity) {
  PolicyContext context{shape, PagePool::create(shape, model.kv_backend()), threads};
  context.rope = [&model](int64_t position, float* cos, float* sin) { model.rope_angles(position, cos, sin); };
  context.load_gate = [set = std::make_shared<const GateSet>(gates, model.config(), model.shows_hidden())](
                          const std::string& name) { return set->find(name); };
  std::map<std::string, std::shared_ptr<const ChannelWorth>> worth;
  for (const auto& [name, file] : gates.worth) {
    try {
      worth[name] = load_channel_worth(file, model.config(), gates.identity);
    } catch (const CacheError& error) {
      throw CacheError("channel_worth: \"" + name + "\": " + error.what());
    }
  }
  context.load_worth = [worth](const std::string& name) {
    const auto found = worth.find(name);
    if (found != worth.end()) return found->second;
    std::string known;
    for (const auto& [other, of] : worth) known += (known.empty() ? "" : ", ") + other;
    throw CacheError("kv_cache.worth: expected the name of a loaded worth file (" +
                     (known.empty() ? "none are loaded" : known) + "), found \"" + name + '"');
  };
  context.load_sensitivity = std::move(sensitivity);
  context.heads = model.heads();
  context.soft_cap = static_cast<float>(model.config().attention_soft_cap);
  context.sinks = [&model](int64_t layer) { return model.attention_sinks(layer); };
  context.window = sliding_window(model.config());
  return context;
}

}  // namespace smartkv
