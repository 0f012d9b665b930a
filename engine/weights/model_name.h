// The names of a model, from its metadata and its path.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace smartkv {

// Returns the model's own name, followed by other names that requests may use. `model` is a GGUF file or a folder.
// `title` is the title in its metadata, or empty.
//  - A folder gives its name.
//  - A GGUF file gives its name without ".gguf", part number and quantization, so that all quantizations of a model
//    have one name: "SmolLM2-135M-Instruct" for "SmolLM2-135M-Instruct.Q4_1.gguf". The name with the quantization is
//    another name.
//  - The title, with a hyphen for each run of spaces, is another name. It comes first if the file or folder has a
//    generic name: "model.gguf", "ggml-model-Q4_0.gguf", "/models/". It is ignored unless it is one line of UTF-8 text
//    of at most 96 bytes.
//  - A snapshot of the Hugging Face cache, models--ORG--NAME/snapshots/COMMIT, gives NAME. The snapshot and files in it
//    have the further name ORG/NAME.
std::vector<std::string> model_names(const std::filesystem::path& model, const std::string& title = "");

// Returns the title of the model in a config.json: the last part of "_name_or_path". Empty if there is none.
std::string title_of_config(const nlohmann::json& config);
// Returns the title of the model in a GGUF file (general.name) or a folder (title_of_config()), for model_names().
// Empty if there is none. Throws ModelError for a GGUF file that cannot be read.
std::string model_title(const std::filesystem::path& model);

}  // namespace smartkv
