// The names that a model goes by, from its metadata and from where it lies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace smartkv {

// Returns the model's own name, and then others by which requests may name it. `model` is a GGUF file or a folder; `title` is
// what its metadata call it, empty where they do not.
//  - A folder is named as it is.
//  - A GGUF file is named as it is without ".gguf", the number of its part and its quantization, so that a model has one name
//    in all of its quantizations: "SmolLM2-135M-Instruct" for "SmolLM2-135M-Instruct.Q4_1.gguf". The other name has the
//    quantization.
//  - The title, with a hyphen for each run of blanks, is a name, too. It comes first where file or folder has a name that
//    says nothing: "model.gguf", "ggml-model-Q4_0.gguf", "/models/". A title that is no line of UTF-8 text of at most 96 bytes is ignored.
//  - A snapshot of the Hugging Face cache, models--ORG--NAME/snapshots/COMMIT, is NAME; it and files in it are also ORG/NAME.
std::vector<std::string> model_names(const std::filesystem::path& model, const std::string& title = "");

// Returns the title that a config.json gives its model: the last part of "_name_or_path". Empty: it gives none.
std::string title_of_config(const nlohmann::json& config);
// Returns the title of the model (GGUF's general.name) that a GGUF file or a folder holds, for model_names(). Throws ModelError for a file
// that cannot be read.
std::string model_title(const std::filesystem::path& model);

}  // namespace smartkv
