// Fetches models from a hub into the cache that huggingface_hub uses (hub_cache.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "hub/hub_settings.h"
#include "hub/model_reference.h"

namespace smartkv {

struct FetchProgress {
  std::string file;             // that is being fetched
  int64_t done = 0, total = 0;  // bytes of all files
};

struct FetchOptions {
  int64_t memory_bytes = 0;  // for the choice of a quantization
  // Called between pieces of a file; may be null, and may throw to end the download, which the next call then resumes.
  std::function<void(const FetchProgress&)> progress = nullptr;
  std::function<void(const std::string&)> say = nullptr;  // a sentence about a choice or a warning
};

// Returns the path of a model for Weights::open(). Fetches the files that are not in the cache. Each is verified by its
// SHA-256 or git hash before it gets its name. Several processes may fetch the same model at once. If the hub cannot be
// reached, or HF_HUB_OFFLINE is set, uses what the cache has. Throws HubError.
std::filesystem::path fetch_model(const HubSettings& settings, const ModelReference& reference,
                                  const FetchOptions& options);

}  // namespace smartkv
