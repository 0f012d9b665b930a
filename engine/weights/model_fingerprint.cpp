#include "engine/weights/model_fingerprint.h"

#include "engine/weights/fields.h"
#include "engine/weights/projections.h"
#include "engine/weights/structure_hash.h"
#include "kernels/bf16.h"

namespace smartkv {

std::string model_identity(const Weights& weights) {
  const ModelConfig& config = weights.config();
  StructureHash hash;
  for (const int64_t size : {config.n_layers, config.n_heads, config.n_kv_heads, config.hidden_size,
                             config.intermediate_size, config.head_dim}) {
    hash.add(size);
  }
  for (const std::string& name : weights.names()) {
    if (!name.ends_with("norm.weight")) continue;
    hash.add(name);
    std::vector<uint16_t> rounded;
    for (const float value : weights.read(name, weights.find(name)->shape)) rounded.push_back(to_bf16(value));
    hash.add(rounded);
  }
  return hash.digest();
}

std::string model_fingerprint(const Weights& weights) {
  StructureHash hash;
  hash.add(model_identity(weights));
  ModelConfig config = weights.config();
  config.name.clear();
  hash.add(config);
  hash.add(weights.output_tokens());
  hash.add(weights.stored_as());
  std::vector<int64_t> order;
  for (const std::string& name : weights.names()) {
    const std::optional<TensorView> tensor = weights.find(name);
    hash.add(name);
    if (!tensor) continue;
    hash.add(*tensor);
    if (!is_rotated(name)) continue;  // The rows of other tensors are in order.
    order.clear();
    for (int64_t row = 0; row < tensor->rows(); ++row) order.push_back(weights.file_row(name, row));
    hash.add(order);
  }
  return hash.digest();
}

}  // namespace smartkv
