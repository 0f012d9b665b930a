// Reader and writer of safetensors files. Source: the format's description in the safetensors repository.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/weights/mapped_file.h"
#include "engine/weights/tensor_view.h"

namespace smartkv {

class SafetensorsFile {
 public:
  // Throws ModelError naming file and tensor. Every length, offset and shape is checked before use.
  static SafetensorsFile open(const std::filesystem::path& path);
  // Reads a file from memory. `bytes` must outlive the result. `name` names the source in errors.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& name);

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A tensor to be written. values: row-major.
struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Writes a file. type: kF32, kF16 or kBf16; values are rounded to nearest even. Throws ModelError if it cannot be
// written.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors, TensorType type,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace smartkv
