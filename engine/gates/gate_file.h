// Reads files of gates, and writes those of LifespanGate: safetensors files with the tensors "layers.<i>.<map>.weight"
// and ".bias", and also "layers.<i>.importance" if the gates have a second head. The metadata say which model the gates
// are for, and how they were trained. The model is recognised by its content (`identity`, by model_identity()). Its
// name is in the metadata, too, but for people only. The files of other projects are in kvpress_gates.h.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/policies/gated_eviction/gate.h"
#include "engine/weights/model_config.h"

namespace smartkv {

// Reads the gates of a model. The kind follows from the tensors of the file, or from the extension .tsv. Throws
// CacheError if the file cannot be read, is not a regular file, or is for another model. In the last case the message
// says how to get gates for this model.
std::shared_ptr<const Gate> load_gate(const std::filesystem::path& file, const ModelConfig& model,
                                      const std::string& identity);

// Returns the gates that ship for the model. Throws CacheError if none do.
std::shared_ptr<const Gate> load_shipped_gate(const ModelConfig& model, const std::string& identity);
// Returns the names of the gates that ship for the model, which are the files' names without extension
// ("smollm2-135m-instruct"). Empty if none ship for it.
std::vector<std::string> shipped_gate_names(const ModelConfig& model, const std::string& identity);

// Returns the layers of a file that write_gate() wrote. Throws what load_gate() throws.
std::vector<GateLayer> read_gate_layers(const std::filesystem::path& file, const ModelConfig& model,
                                        const std::string& identity);

// Returns a file's metadata except those about the model: the training text, the command, the results of the training.
// Puts `prefix` before each name. Throws ModelError if the file cannot be read.
std::map<std::string, std::string> gate_notes(const std::filesystem::path& file, const std::string& prefix);

// Writes the gates of a model in bf16. `notes` are added to the metadata: the training text, the command, the results
// of the training. Throws ModelError.
void write_gate(const std::filesystem::path& file, const ModelConfig& model, const std::string& identity,
                const std::vector<GateLayer>& layers, const std::map<std::string, std::string>& notes);

}  // namespace smartkv
