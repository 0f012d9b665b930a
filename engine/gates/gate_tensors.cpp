#include "engine/gates/gate_tensors.h"

#include "cache/sequence_cache.h"

namespace smartkv {
namespace {

std::string text_of(const std::vector<int64_t>& shape) {
  std::string joined;
  for (const int64_t extent : shape) joined += (joined.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + joined + "]";
}

const TensorView& find(const SafetensorsFile& file, const std::string& tensor) {
  const auto found = file.tensors().find(tensor);
  if (found == file.tensors().end()) throw CacheError("tensor \"" + tensor + "\" is missing");
  return found->second;
}

}  // namespace

std::vector<float> read_gate_tensor(const SafetensorsFile& file, const std::string& tensor,
                                    const std::vector<int64_t>& shape) {
  const TensorView& view = find(file, tensor);
  if (view.shape != shape) {
    throw CacheError("tensor \"" + tensor + "\": expected shape " + text_of(shape) + ", found " + text_of(view.shape));
  }
  std::vector<float> values(static_cast<size_t>(view.elements()));
  expand_rows(view, 0, view.rows(), values.data());
  return values;
}

int64_t gate_extent(const SafetensorsFile& file, const std::string& tensor, size_t axis, size_t rank) {
  const TensorView& view = find(file, tensor);
  if (view.shape.size() != rank || view.elements() == 0) {
    throw CacheError("tensor \"" + tensor + "\": expected " + std::to_string(rank) +
                     " axes and elements, found shape " + text_of(view.shape));
  }
  return view.shape[axis];
}

std::vector<int64_t> gated_layers(const ModelConfig& model) {
  std::vector<int64_t> layers = model.cache_order();
  layers.resize(static_cast<size_t>(model.n_full_layers()));
  return layers;
}

}  // namespace smartkv
