// The names that a model goes by, from where it lies.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace smartkv {

// Returns the model's own name, and then others by which requests may name it. `model` is a GGUF file or a folder.
//  - A folder is named as it is.
//  - A GGUF file is named as it is without ".gguf", the number of its part and its quantization, so that a model has one name
//    in all of its quantizations: "SmolLM2-135M-Instruct" for "SmolLM2-135M-Instruct.Q4_1.gguf". The other name has the
//    quantization.
//  - A snapshot of the Hugging Face cache, models--ORG--NAME/snapshots/COMMIT, is NAME; it and files in it are also ORG/NAME.
std::vector<std::string> model_names(const std::filesystem::path& model);

}  // namespace smartkv
