// Writer of GGUF v3 files (gguf.h). It writes tensor by tensor, so that a model need not fit into memory.
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

// Usage: add all keys and tensors, call begin(), write() the bytes of the tensors in the same order, call end().
// Throws std::logic_error on misuse, and ModelError if the file cannot be written.
class GgufWriter {
 public:
  explicit GgufWriter(std::filesystem::path path);

  void add_string(std::string_view key, std::string_view value);
  void add_uint32(std::string_view key, uint32_t value);
  void add_raw(std::string_view key, std::span<const std::byte> value);  // `value` is a result of GgufFile::raw().
  // shape: row-major, as in TensorView. REQUIRES: a row holds whole blocks of the type.
  void add_tensor(std::string_view name, TensorType type, std::span<const int64_t> shape);

  void begin();                                  // Opens the file and writes the header.
  void write(std::span<const std::byte> bytes);  // Writes the next bytes of the current tensor: all of them, or a part.
  void end();

 private:
  struct Tensor {
    std::string name;
    int64_t bytes;
  };
  void pad();          // Writes zeros up to the alignment.
  void check() const;  // Throws ModelError if a write has failed.

  std::filesystem::path path_;
  std::ofstream out_;
  std::string keys_, infos_;  // Keys and descriptions of tensors, encoded.
  uint64_t n_keys_ = 0;
  std::vector<Tensor> tensors_;
  int64_t data_bytes_ = 0;  // Bytes of the tensors that were added, each padded to the alignment.
  size_t current_ = 0;      // Index of the tensor that is being written.
  int64_t written_ = 0;     // Bytes of it that were written.
};

}  // namespace smartkv
