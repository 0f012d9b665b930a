// Which files of a repository make up a model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model_reference.h"

namespace smartkv {

struct HubFile {
  std::string path;    // in the repository
  int64_t bytes = -1;  // -1 if unknown
};

struct ChosenFiles {
  std::vector<HubFile> files = {};  // the first one is what Weights::open() takes, unless `folder`
  bool folder = false;              // the model is the folder with these files
  std::string why = {};             // how a quantization was chosen, as a sentence; empty if the user named it
};

// Returns the quantization in the name of a GGUF file, in capitals: "Q4_K_M" of "model-q4_k_m-00001-of-00002.gguf".
// Empty if there is none.
std::string quantization_of(std::string_view file);

// Chooses the files of a reference among those of its repository: a named file with its other shards; GGUF files of a
// quantization; or the safetensors with configuration and tokenizer. Files of vision (mmproj) do not count. If there
// are several quantizations and none is named: Q4_K_M if it fits, else the largest that fits below it, else the
// smallest. A file fits if it takes at most two thirds of memory_bytes, so that the KV cache has the rest. Throws
// HubError, with what there is.
ChosenFiles choose_files(const ModelReference& reference, const std::vector<HubFile>& files, int64_t memory_bytes);

}  // namespace smartkv
