// The gates that a request may name: those that the operator configured and those that ship. Files are opened when the
// set is made; a name is never taken for a path.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cache/policies/gated_eviction/gate.h"
#include "engine/weights/model_config.h"

namespace smartkv {

using GateFiles = std::map<std::string, std::filesystem::path>;  // by the name that requests use

// Where a model's gates come from, and what is known of its channels.
struct GateSources {
  std::string identity = {};  // of the model, by model_identity(): finds those that ship; empty: none do
  GateFiles files = {};
  GateFiles worth = {};  // of `smartkv train-probe`
};

class GateSet {
 public:
  // Opens all files. Throws CacheError naming the gate and what is wrong with its file (not a regular file, of another
  // model, damaged) or its name (one that ships). `model` outlives the set.
  GateSet(const GateSources& sources, const ModelConfig& model);

  // "": the configured gates of the name "default", else those that ship for the model. Thread-safe. Throws CacheError:
  // an unknown name, with the known ones, or none ships.
  std::shared_ptr<const Gate> find(const std::string& name) const;

 private:
  const ModelConfig& model_;
  std::string identity_;
  std::map<std::string, std::shared_ptr<const Gate>> configured_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::weak_ptr<const Gate>> shipped_;  // opened once, for as long as a policy holds them
};

}  // namespace smartkv
