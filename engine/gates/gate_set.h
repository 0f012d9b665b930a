// The gates that a request may name: those that the operator configured, and those that ship for the model. All
// configured files are read when the set is made. A name from a request is never taken for a path.
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

// Where a model's gates and the worth of its channels come from.
struct GateSources {
  std::string identity = {};  // the model's, by model_identity(), which finds the gates that ship; empty: none do
  GateFiles files = {};       // gates that the operator configured
  GateFiles worth = {};       // files of `smartkv train-probe`; GateSet does not read them
};

class GateSet {
 public:
  // Reads all configured files and logs what they are. `model` outlives the set. shows_hidden: Model::shows_hidden().
  // Throws CacheError if a file is not a regular file, is damaged or is for another model, if it needs hidden states
  // that the model does not show, or if a configured gate has the name of one that ships. The message names the gate.
  GateSet(const GateSources& sources, const ModelConfig& model, bool shows_hidden = true);

  // Returns the gates with this name. "" stands for the configured gates named "default"; if there are none, for those
  // that ship for the model. Thread-safe. Throws CacheError if the name is unknown, with a list of the known names, or
  // if "" was asked for and no gates ship.
  std::shared_ptr<const Gate> find(const std::string& name) const;

 private:
  const ModelConfig& model_;
  std::string identity_;
  std::map<std::string, std::shared_ptr<const Gate>> configured_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::weak_ptr<const Gate>> shipped_;  // shared by all policies that hold them
};

}  // namespace smartkv
