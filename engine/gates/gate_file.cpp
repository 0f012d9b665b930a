#include "engine/gates/gate_file.h"

#include <optional>

#include "cache/policy.h"
#include "engine/gates/gate_tensors.h"
#include "engine/gates/kvpress_gates.h"
#include "engine/gates/shipped_gates.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/weights.h"

namespace smartkv {
namespace {

constexpr const char* kHowToTrain =
    "; train gates for this model (smartkv train-gate --model MODEL --text FILE --out gate.safetensors) and load "
    "them under a name (--gate NAME=gate.safetensors)";

// Returns the metadata that a file of gates for this model has, by name.
std::map<std::string, std::string> needed(const ModelConfig& model, const std::string& identity) {
  return {{"model_identity", identity},
          {"n_layers", std::to_string(model.n_layers)},
          {"n_kv_heads", std::to_string(model.n_kv_heads)},
          {"head_dim", std::to_string(model.head_dim)}};
}

// The metadata field with the name of the model that the gates were trained for. It is for people only.
constexpr const char* kModelName = "model";

std::string model_name(const std::map<std::string, std::string>& metadata) {
  const auto name = metadata.find(kModelName);
  return name == metadata.end() ? "a model without a name" : name->second;
}

// Returns a message about the first field in which the file's metadata and the model differ, or nullopt if none does.
std::optional<std::string> mismatch(const std::map<std::string, std::string>& metadata, const ModelConfig& model,
                                    const std::string& identity) {
  for (const auto& [key, expected] : needed(model, identity)) {
    const auto found = metadata.find(key);
    if (found == metadata.end()) {
      return "metadata \"" + key + "\" is missing: not a file of smartkv train-gate, KVzap or Fast KVzip";
    }
    if (found->second != expected) {
      return "the gates are for another model, " + model_name(metadata) + ": " + key + ": expected " + expected +
             ", found " + found->second;
    }
  }
  return std::nullopt;
}

std::string tensor_name(int64_t layer, int64_t map, const char* part) {
  return "layers." + std::to_string(layer) + "." + std::to_string(map) + "." + part;
}

std::string importance_name(int64_t layer) { return "layers." + std::to_string(layer) + ".importance"; }

std::vector<int64_t> importance_shape(const ModelConfig& model) {
  return {model.n_kv_heads, GateLayer::importance_features(model.n_kv_heads, model.head_dim) + 1};
}

std::vector<GateLayer> read_layers(const SafetensorsFile& file, const ModelConfig& model) {
  const std::vector<int64_t> order = gated_layers(model);
  std::vector<GateLayer> layers(order.size());
  for (size_t place = 0; place < order.size(); ++place) {
    GateLayer& layer = layers[place];
    const int64_t index = order[place];
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      const auto [out, in] = GateLayer::shape(i, model.head_dim);
      layer.weight[i] = read_gate_tensor(file, tensor_name(index, i, "weight"), {out, in});
      layer.bias[i] = read_gate_tensor(file, tensor_name(index, i, "bias"), {out});
    }
    const bool second = file.tensors().contains(importance_name(0));
    if (second) layer.importance = read_gate_tensor(file, importance_name(index), importance_shape(model));
  }
  return layers;
}

std::shared_ptr<const Gate> build(const SafetensorsFile& file, const ModelConfig& model) {
  return std::make_shared<const LifespanGate>(model.n_kv_heads, model.head_dim, read_layers(file, model));
}

// Returns read(), and adds the name of the file to what it throws as a CacheError.
template <typename Read>
auto from_file(const std::filesystem::path& file, const Read& read) {
  try {
    return read();
  } catch (const ModelError& error) {
    throw CacheError("gate file " + file.string() + ": " + error.what());
  } catch (const CacheError& error) {
    throw CacheError("gate file " + file.string() + ": " + error.what());
  }
}

// Throws CacheError unless the file is one of `smartkv train-gate` for the model.
void check_own(const SafetensorsFile& file, const ModelConfig& model, const std::string& identity) {
  if (const auto difference = mismatch(file.metadata(), model, identity)) throw CacheError(*difference + kHowToTrain);
}

}  // namespace

std::shared_ptr<const Gate> load_shipped_gate(const ModelConfig& model, const std::string& identity) {
  std::string names;
  for (const EmbeddedFile& shipped : shipped_gates()) {
    const SafetensorsFile file = SafetensorsFile::parse(shipped.bytes, std::string(shipped.file));
    if (!mismatch(file.metadata(), model, identity)) return build(file, model);
    names += (names.empty() ? "" : ", ") + model_name(file.metadata());
  }
  throw ModelLacks("no built-in gates for the model \"" + model.name + "\" with " + std::to_string(model.n_layers) +
                   " layers, " + std::to_string(model.n_kv_heads) + " KV heads and head_dim " +
                   std::to_string(model.head_dim) + " (built-in gates: " + (names.empty() ? "none" : names) + ")" +
                   kHowToTrain);
}

std::vector<std::string> shipped_gate_names(const ModelConfig& model, const std::string& identity) {
  std::vector<std::string> names;
  for (const EmbeddedFile& shipped : shipped_gates()) {
    const SafetensorsFile file = SafetensorsFile::parse(shipped.bytes, std::string(shipped.file));
    if (!mismatch(file.metadata(), model, identity))
      names.push_back(std::filesystem::path(shipped.file).parent_path().string());
  }
  return names;
}

std::shared_ptr<const Gate> load_gate(const std::filesystem::path& file, const ModelConfig& model,
                                      const std::string& identity) {
  return from_file(file, [&]() -> std::shared_ptr<const Gate> {
    if (file.extension() == ".tsv") return read_duo_attention(file, model);
    const SafetensorsFile opened = SafetensorsFile::open(file);
    if (auto gate = read_kvpress_gate(opened, model)) return gate;
    check_own(opened, model, identity);
    return build(opened, model);
  });
}

std::vector<GateLayer> read_gate_layers(const std::filesystem::path& file, const ModelConfig& model,
                                        const std::string& identity) {
  return from_file(file, [&] {
    const SafetensorsFile opened = SafetensorsFile::open(file);
    check_own(opened, model, identity);
    return read_layers(opened, model);
  });
}

std::map<std::string, std::string> gate_notes(const std::filesystem::path& file, const std::string& prefix) {
  const SafetensorsFile opened = SafetensorsFile::open(file);
  const std::map<std::string, std::string> of_model = needed({}, "");
  std::map<std::string, std::string> notes;
  for (const auto& [name, value] : opened.metadata()) {
    if (name != kModelName && !of_model.contains(name)) notes[prefix + name] = value;
  }
  return notes;
}

void write_gate(const std::filesystem::path& file, const ModelConfig& model, const std::string& identity,
                const std::vector<GateLayer>& layers, const std::map<std::string, std::string>& notes) {
  std::vector<NamedTensor> tensors;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (int64_t i = 0; i < GateLayer::kDepth; ++i) {
      const auto [out, in] = GateLayer::shape(i, model.head_dim);
      const auto index = static_cast<int64_t>(layer);
      tensors.push_back({tensor_name(index, i, "weight"), {out, in}, layers[layer].weight[i]});
      tensors.push_back({tensor_name(index, i, "bias"), {out}, layers[layer].bias[i]});
    }
    if (!layers[layer].importance.empty()) {
      tensors.push_back(
          {importance_name(static_cast<int64_t>(layer)), importance_shape(model), layers[layer].importance});
    }
  }
  std::map<std::string, std::string> metadata = notes;
  metadata[kModelName] = model.name;
  metadata.merge(needed(model, identity));
  write_safetensors(file, tensors, TensorType::kBf16, metadata);
}

}  // namespace smartkv
