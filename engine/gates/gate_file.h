// Files of learned gates: safetensors with the tensors "layers.<i>.<map>.weight" and ".bias", for gates with a second head
// "layers.<i>.importance" as well. Their metadata say which model they are for, by its content (`identity`, as
// model_identity() gives it), and how they came about. A model's name stands there for people only.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "engine/weights/model_config.h"

namespace smartkv {

// Opens the gates of a model. Throws CacheError when the file cannot be read, is no regular file or for another model;
// the message says what to do.
std::shared_ptr<const Gate> load_gate(const std::filesystem::path& file, const ModelConfig& model, const std::string& identity);

// Returns the gates that ship for the model. Throws CacheError when none do.
std::shared_ptr<const Gate> load_shipped_gate(const ModelConfig& model, const std::string& identity);
// Returns their names: the files' without extension ("smollm2-135m-instruct"). Empty: none ship for the model.
std::vector<std::string> shipped_gate_names(const ModelConfig& model, const std::string& identity);

// Returns the layers of a file that write_gate() wrote. Throws as load_gate().
std::vector<GateLayer> read_gate_layers(const std::filesystem::path& file, const ModelConfig& model, const std::string& identity);

// Returns what a file's metadata say beside the model: the training text, the command, the figures. `prefix` comes before each
// name.
std::map<std::string, std::string> gate_notes(const std::filesystem::path& file, const std::string& prefix);

// Writes bf16. `notes` joins the metadata: the training text, the command, the figures. Throws ModelError.
void write_gate(const std::filesystem::path& file, const ModelConfig& model, const std::string& identity,
                const std::vector<GateLayer>& layers, const std::map<std::string, std::string>& notes);

}  // namespace smartkv
