#include "engine/weights/weights.h"

#include "engine/weights/gguf.h"
#include "engine/weights/gguf_weights.h"
#include "engine/weights/hf_weights.h"
#include "engine/weights/required_tensors.h"

namespace smartkv {

std::unique_ptr<Weights> Weights::open(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw ModelError(path.string() + ": no such file or folder");
  const bool folder = std::filesystem::is_directory(path, error);
  if (!folder && path.extension() != ".gguf" && !is_gguf(path)) {
    throw ModelError(path.string() + ": expected a GGUF file or a folder with config.json and safetensors");
  }
  std::unique_ptr<Weights> weights = folder ? open_hf_weights(path) : open_gguf_weights(path);
  check_required_tensors(*weights, path.filename().string());
  return weights;
}

void Weights::read_rows(std::string_view name, int64_t first, int64_t count, float* out) const {
  const std::optional<TensorView> view = find(name);
  if (!view) throw ModelError("tensor \"" + std::string(name) + "\" is missing");
  const int64_t width = view->row_elements();
  // Rows that are neighbours in the file are expanded together.
  for (int64_t row = 0; row < count;) {
    const int64_t start = file_row(name, first + row);
    int64_t run = 1;
    while (row + run < count && file_row(name, first + row + run) == start + run) ++run;
    expand_rows(*view, start, run, out + row * width);
    row += run;
  }
}

std::vector<float> Weights::read(std::string_view name, std::span<const int64_t> shape) const {
  const std::optional<TensorView> view = find(name);
  check_shape(std::string(name), view, shape, "");
  std::vector<float> values(static_cast<size_t>(view->elements()));
  read_rows(name, 0, view->rows(), values.data());
  if (shape.size() == 1) {  // The elements of a bias are ordered as the rows of its matrix.
    const std::vector<float> in_file_order = values;
    for (int64_t i = 0; i < shape[0]; ++i) values[i] = in_file_order[file_row(name, i)];
  }
  return values;
}

}  // namespace smartkv
