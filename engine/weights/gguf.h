// Reader of GGUF v2 and v3 files (the format of llama.cpp). The file is memory-mapped; tensors are views into the map.
// Source: the GGUF specification in the ggml repository (docs/gguf.md).
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

// The key of Weights::stored_as().
inline constexpr const char* kStoredAsKey = "smartkv.weights";

using GgufArray = std::variant<std::vector<bool>, std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;
// Integers of every width are held as int64_t (uint64 above INT64_MAX is an error), floats as double.
using GgufValue = std::variant<bool, int64_t, double, std::string, GgufArray>;

class GgufFile {
 public:
  // Throws ModelError naming the file, the key or tensor, what was expected and what was found; never crashes,
  // whatever the bytes: lengths, offsets, alignment, overlaps and shapes are checked before use. Of a split file, open()
  // takes the first part and reads the others beside it; metadata() is that of the first.
  static GgufFile open(const std::filesystem::path& path);
  static GgufFile parse(std::span<const std::byte> bytes, std::string name);  // `bytes` outlive the result

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  size_t parts() const { return files_.size(); }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }  // names as in the file

  // Typed metadata: nullptr/nullopt when absent; ModelError when present with another type.
  std::optional<int64_t> get_int(std::string_view key) const;
  std::optional<double> get_float(std::string_view key) const;  // accepts an integer too
  std::optional<bool> get_bool(std::string_view key) const;
  const std::string* get_string(std::string_view key) const;
  const std::vector<std::string>* get_strings(std::string_view key) const;
  const std::vector<int64_t>* get_ints(std::string_view key) const;
  const std::vector<double>* get_floats(std::string_view key) const;
  // The value as the file has it: its type and its bytes, as GgufWriter::add_raw takes them. Empty when absent.
  std::span<const std::byte> raw(std::string_view key) const;

 private:
  GgufFile() = default;

  std::string name_;
  uint32_t version_ = 0;
  std::vector<MappedFile> files_;  // a part each
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, TensorView, std::less<>> tensors_;
  std::map<std::string, std::span<const std::byte>, std::less<>> raw_;
};

// Returns whether the file begins as GGUF files do. Opens regular files only.
bool is_gguf(const std::filesystem::path& path);

// Weights::stored_as() of a file.
std::string stored_as(const GgufFile& file);

// The number by which GGUF names a type; throws ModelError for those that it does not have.
uint32_t ggml_type_number(TensorType type);

}  // namespace smartkv
