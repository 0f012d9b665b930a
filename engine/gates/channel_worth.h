// Reads the files that `smartkv train-probe` writes: how much each channel of a model's K and V matters.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cache/policies/channel_packed/cut_options.h"
#include "engine/weights/model_config.h"

namespace smartkv {

// Reads a file. `identity` is the model's, by model_identity(). Throws CacheError if the file cannot be read, is for
// another model, or lacks a number. The message names the file and the member, and says what was expected and what was
// found.
std::shared_ptr<const ChannelWorth> load_channel_worth(const std::filesystem::path& file, const ModelConfig& model,
                                                       const std::string& identity);

}  // namespace smartkv
