#include "engine/weights/model_fingerprint.h"

#include <vector>

#include "engine/weights/fields.h"
#include "engine/weights/projections.h"
#include "engine/weights/structure_hash.h"

namespace smartkv {

std::string model_fingerprint(const Weights& weights) {
  StructureHash hash;
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
    if (!is_rotated(name)) continue;  // rows of the other tensors are in order
    order.clear();
    for (int64_t row = 0; row < tensor->rows(); ++row) order.push_back(weights.file_row(name, row));
    hash.add(order);
  }
  return hash.digest();
}

}  // namespace smartkv
