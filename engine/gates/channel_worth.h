// Files of `smartkv train-probe`: how much each channel of a model's K and V matters.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "cache/policies/channel_packed/cut_options.h"
#include "engine/weights/model_config.h"

namespace smartkv {

// Reads a file. Throws CacheError naming the file and the member, with what was expected and found: for a file that cannot be read, is
// of another model (`identity`, as model_identity() gives it) or lacks a number.
std::shared_ptr<const ChannelWorth> load_channel_worth(const std::filesystem::path& file, const ModelConfig& model, const std::string& identity);

}  // namespace smartkv
