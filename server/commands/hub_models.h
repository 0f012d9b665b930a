// Models by name: those of a hub, in the cache that huggingface_hub uses (hub/).
#pragma once

#include <filesystem>
#include <functional>

#include <CLI/CLI.hpp>

namespace smartkv {

// Returns `model` if it is a path, else the path of the model of that name (hub/model_reference.h), which is fetched
// first. Shows progress on stderr. Throws HubError.
std::filesystem::path find_model(const std::filesystem::path& model);

std::function<int()> setup_pull(CLI::App& app);
std::function<int()> setup_models(CLI::App& app);
std::function<int()> setup_rm(CLI::App& app);

}  // namespace smartkv
