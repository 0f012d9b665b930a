#include "engine/gates/gate_set.h"

#include <algorithm>

#include "cache/sequence_cache.h"
#include "engine/gates/gate_file.h"
#include "engine/log.h"

namespace smartkv {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

}  // namespace

GateSet::GateSet(const GateSources& sources, const ModelConfig& model, bool shows_hidden)
    : model_(model), identity_(sources.identity) {
  const std::vector<std::string> shipped = shipped_gate_names(model, identity_);
  for (const auto& [name, file] : sources.files) {
    if (std::find(shipped.begin(), shipped.end(), name) != shipped.end()) {
      throw CacheError("gates: \"" + name + "\" is the name of built-in gates; choose another name");
    }
    try {
      const auto gate = configured_.emplace(name, load_gate(file, model, identity_)).first->second;
      if (gate->scores_hidden() && !shows_hidden) {
        throw CacheError(gate->description() + ", scores hidden states: expected backend native, found torch");
      }
      log_info("gates: \"" + name + "\": " + gate->description() + "; " + std::to_string(gate->n_layers()) +
               " layers, " + std::to_string((gate->bytes() + kMebibyte - 1) / kMebibyte) + " MiB");
    } catch (const CacheError& error) {
      throw CacheError("gates: \"" + name + "\": " + error.what());
    }
  }
}

std::shared_ptr<const Gate> GateSet::find(const std::string& name) const {
  if (const auto found = configured_.find(name.empty() ? "default" : name); found != configured_.end()) {
    return found->second;
  }
  const std::vector<std::string> shipped = shipped_gate_names(model_, identity_);
  if (!name.empty() && std::find(shipped.begin(), shipped.end(), name) == shipped.end()) {
    std::string known;
    for (const auto& [configured, gate] : configured_) known += (known.empty() ? "\"" : ", \"") + configured + '"';
    for (const std::string& one : shipped) known += (known.empty() ? "\"" : ", \"") + one + '"';
    throw CacheError("kv_cache.gate: expected the name of loaded gates (" +
                     (known.empty() ? "none are loaded" : known) + "), found \"" + name + '"');
  }
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const Gate>& held = shipped_[name];
  std::shared_ptr<const Gate> gate = held.lock();
  if (!gate) held = gate = load_shipped_gate(model_, identity_);
  return gate;
}

}  // namespace smartkv
