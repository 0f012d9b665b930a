// Writer of GGUF v3 files (gguf.h), tensor by tensor, so that a model need not fit into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/tensor_view.h"

namespace smartkv {

// First all keys and tensors, then begin(), then the tensors' bytes in the same order, then end(). Misuse throws
// std::logic_error; a file that cannot be written, ModelError.
class GgufWriter {
 public:
  explicit GgufWriter(std::filesystem::path path);

  void add_string(std::string_view key, std::string_view value);
  void add_uint32(std::string_view key, uint32_t value);
  void add_raw(std::string_view key, std::span<const std::byte> value);  // of GgufFile::raw()
  // shape: row-major, as TensorView has it; rows hold whole blocks of the type.
  void add_tensor(std::string_view name, TensorType type, std::span<const int64_t> shape);

  void begin();
  void write(std::span<const std::byte> bytes);  // the next ones; a tensor may come in parts
  void end();

 private:
  struct Tensor {
    std::string name;
    int64_t bytes;
  };
  void pad();          // to the alignment
  void check() const;  // that all was written

  std::filesystem::path path_;
  std::ofstream out_;
  std::string keys_, infos_;  // encoded
  uint64_t n_keys_ = 0;
  std::vector<Tensor> tensors_;
  int64_t data_bytes_ = 0;  // of the tensors that were added, each padded
  size_t current_ = 0;      // the tensor being written
  int64_t written_ = 0;     // bytes of it
};

}  // namespace smartkv
