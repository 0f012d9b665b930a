// Reader of GGUF v2 and v3 files (the format of llama.cpp). The file is memory-mapped; tensors are views of the
// mapping. Source: the GGUF specification in the ggml repository (docs/gguf.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/weights/mapped_file.h"
#include "engine/weights/tensor_view.h"

namespace smartkv {

// The metadata key that holds Weights::stored_as().
inline constexpr const char* kStoredAsKey = "smartkv.weights";

using GgufArray = std::variant<std::vector<bool>, std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;
// Integers of every width are held as int64_t (uint64 above INT64_MAX is an error), floats as double.
using GgufValue = std::variant<bool, int64_t, double, std::string, GgufArray>;

class GgufFile {
 public:
  // Throws ModelError naming the file, the key or tensor, what was expected and what was found. Never crashes, whatever
  // the bytes: lengths, offsets, alignment, overlaps and shapes are checked before use. If the file is split, `path` is
  // the first part; the other parts are read from the same folder, and metadata() is that of the first part.
  static GgufFile open(const std::filesystem::path& path);
  // Reads a file from memory. `bytes` must outlive the result.
  static GgufFile parse(std::span<const std::byte> bytes, std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  size_t parts() const { return files_.size(); }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  // by the names in the file
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }

  // Typed access to metadata. Return nullptr or nullopt if the key is absent. Throw ModelError if it has another type.
  std::optional<int64_t> get_int(std::string_view key) const;
  std::optional<double> get_float(std::string_view key) const;  // Accepts an integer, too.
  std::optional<bool> get_bool(std::string_view key) const;
  const std::string* get_string(std::string_view key) const;
  const std::vector<std::string>* get_strings(std::string_view key) const;
  const std::vector<int64_t>* get_ints(std::string_view key) const;
  const std::vector<double>* get_floats(std::string_view key) const;
  // Returns the encoded value: its type and its bytes, as GgufWriter::add_raw() takes them. Empty if the key is absent.
  std::span<const std::byte> raw(std::string_view key) const;

 private:
  GgufFile() = default;

  std::string name_;
  uint32_t version_ = 0;
  std::vector<MappedFile> files_;  // One per part.
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::span<const std::byte>, std::less<>> raw_;
};

// Returns whether the file begins as GGUF files do. Opens regular files only.
bool is_gguf(const std::filesystem::path& path);

// Returns Weights::stored_as() of a file. Throws ModelError if the key has an unknown value.
std::string stored_as(const GgufFile& file);

// Returns the number of a type in GGUF files. Throws ModelError for a type that GGUF does not have.
uint32_t ggml_type_number(TensorType type);

}  // namespace smartkv
