#include "engine/weights/gguf.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "engine/weights/weights.h"

namespace smartkv {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr int kMaxDimensions = 4;
constexpr int64_t kMaxParts = 1000;  // Parts of a split file. The size limits of hosts need far fewer.

// Types of metadata values, numbered as in the specification.
enum GgufType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64, kTypeEnd };

// Tensor types of ggml that are not supported, for error messages.
constexpr std::pair<uint32_t, std::string_view> kUnsupportedTypes[] = {{15, "Q8_K"}, {24, "I8"},  {25, "I16"},
                                                                       {26, "I32"},  {27, "I64"}, {28, "F64"}};

std::string supported_types() {
  std::string names;
  for (const TensorTypeInfo& type : tensor_types()) {
    if (type.ggml >= 0) names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  return names;
}

// Returns the name of an unsupported type, for error messages.
std::string name_of_type(uint32_t number) {
  for (const auto& [type, name] : kUnsupportedTypes) {
    if (type == number) return std::string(name);
  }
  return "the unknown type " + std::to_string(number);
}

// Reads little-endian values. Throws ModelError instead of reading past the end.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  [[noreturn]] void fail(const std::string& message) const { throw ModelError(name_ + ": " + message); }

  template <typename T>
  T number(const std::string& what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }
  std::string string(const std::string& what) {
    const uint64_t length = number<uint64_t>("the length of " + what);
    return {reinterpret_cast<const char*>(take(length, what)), static_cast<size_t>(length)};
  }
  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

 private:
  const std::byte* take(uint64_t n, const std::string& what) {
    if (n > left()) {
      fail("truncated: " + what + " needs " + std::to_string(n) + " bytes at offset " + std::to_string(position_) +
           ", found " + std::to_string(left()));
    }
    const std::byte* at = bytes_.data() + position_;
    position_ += static_cast<size_t>(n);
    return at;
  }

  std::span<const std::byte> bytes_;
  const std::string& name_;
  size_t position_ = 0;
};

int64_t read_integer(Reader& reader, uint32_t type, const std::string& what) {
  switch (type) {
    case kU8: return reader.number<uint8_t>(what);
    case kI8: return reader.number<int8_t>(what);
    case kU16: return reader.number<uint16_t>(what);
    case kI16: return reader.number<int16_t>(what);
    case kU32: return reader.number<uint32_t>(what);
    case kI32: return reader.number<int32_t>(what);
    case kI64: return reader.number<int64_t>(what);
    default: break;
  }
  const uint64_t value = reader.number<uint64_t>(what);
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    reader.fail(what + ": expected an integer below 2^63, found " + std::to_string(value));
  }
  return static_cast<int64_t>(value);
}

double read_float(Reader& reader, uint32_t type, const std::string& what) {
  return type == kF32 ? static_cast<double>(reader.number<float>(what)) : reader.number<double>(what);
}

bool read_bool(Reader& reader, const std::string& what) { return reader.number<uint8_t>(what) != 0; }

GgufArray read_array(Reader& reader, const std::string& what) {
  const uint32_t type = reader.number<uint32_t>("the element type of " + what);
  const uint64_t count = reader.number<uint64_t>("the length of " + what);
  if (type == kArray || type >= kTypeEnd)
    reader.fail(what + ": arrays of type " + std::to_string(type) + " are not supported");
  if (count > reader.left()) {  // An element takes at least one byte.
    reader.fail(what + ": " + std::to_string(count) + " elements do not fit into the remaining " +
                std::to_string(reader.left()) + " bytes");
  }
  const auto fill = [&](auto values, const auto& read) -> GgufArray {
    values.reserve(static_cast<size_t>(count));
    for (uint64_t i = 0; i < count; ++i) values.push_back(read());
    return values;
  };
  switch (type) {
    case kString: return fill(std::vector<std::string>(), [&] { return reader.string(what); });
    case kBool: return fill(std::vector<bool>(), [&] { return read_bool(reader, what); });
    case kF32:
    case kF64: return fill(std::vector<double>(), [&] { return read_float(reader, type, what); });
    default: return fill(std::vector<int64_t>(), [&] { return read_integer(reader, type, what); });
  }
}

GgufValue read_value(Reader& reader, const std::string& what) {
  const uint32_t type = reader.number<uint32_t>("the type of " + what);
  switch (type) {
    case kBool: return read_bool(reader, what);
    case kString: return reader.string(what);
    case kArray: return read_array(reader, what);
    case kF32:
    case kF64: return read_float(reader, type, what);
    default: break;
  }
  if (type >= kTypeEnd) reader.fail(what + ": unknown value type " + std::to_string(type));
  return read_integer(reader, type, what);
}

// A tensor whose bytes have not been located yet. offset: from the start of the data.
struct PendingTensor {
  TensorView view;
  uint64_t offset = 0, bytes = 0;
};

PendingTensor read_tensor_info(Reader& reader) {
  PendingTensor pending;
  TensorView& view = pending.view;
  view.name = reader.string("a tensor's name");
  const std::string what = "tensor \"" + view.name + "\"";
  const uint32_t dimensions = reader.number<uint32_t>(what);
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    reader.fail(what + ": expected 1 to 4 dimensions, found " + std::to_string(dimensions));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const uint64_t extent = reader.number<uint64_t>(what);
    if (extent == 0 || extent > (uint64_t{1} << 40) / elements) {
      reader.fail(what + ": dimension " + std::to_string(i) + " of " + std::to_string(extent) + " is out of range");
    }
    elements *= extent;
    view.shape.insert(view.shape.begin(), static_cast<int64_t>(extent));
  }
  const uint32_t type = reader.number<uint32_t>(what);
  const auto has_number = [type](const TensorTypeInfo& row) { return row.ggml == int64_t{type}; };
  const auto info = std::ranges::find_if(tensor_types(), has_number);
  if (info == tensor_types().end()) {
    reader.fail(what + ": expected one of the types " + supported_types() + ", found " + name_of_type(type));
  }
  view.type = info->type;
  if (view.row_elements() % info->block_elements != 0) {
    reader.fail(what + ": rows of " + std::to_string(view.row_elements()) + " elements are not whole blocks of " +
                std::string(info->name));
  }
  pending.bytes = elements / static_cast<uint64_t>(info->block_elements) * static_cast<uint64_t>(info->block_bytes);
  pending.offset = reader.number<uint64_t>(what);
  return pending;
}

template <typename T>
const T* typed(const std::map<std::string, GgufValue, std::less<>>& metadata, std::string_view key,
               const std::string& file, const char* expected) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return nullptr;
  if (const T* value = std::get_if<T>(&found->second)) return value;
  throw ModelError(file + ": key \"" + std::string(key) + "\": expected " + expected + ", found another type");
}

template <typename T>
const T* typed_array(const std::map<std::string, GgufValue, std::less<>>& metadata, std::string_view key,
                     const std::string& file, const char* expected) {
  const GgufArray* array = typed<GgufArray>(metadata, key, file, expected);
  if (array == nullptr) return nullptr;
  if (const T* values = std::get_if<T>(array)) return values;
  throw ModelError(file + ": key \"" + std::string(key) + "\": expected " + expected +
                   ", found an array of another type");
}

}  // namespace

GgufFile GgufFile::open(const std::filesystem::path& path) {
  const auto open_one = [](const std::filesystem::path& part) {
    MappedFile file(part);
    GgufFile parsed = parse(file.bytes(), part.filename().string());
    parsed.files_.push_back(std::move(file));
    return parsed;
  };
  GgufFile first = open_one(path);
  const int64_t count = first.get_int("split.count").value_or(1);
  if (count < 2) return first;
  // llama.cpp's gguf-split names the parts "<stem>-00001-of-00003.gguf".
  const auto part_name = [&](const std::string& stem, int64_t number) {
    char suffix[32];
    std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", static_cast<int>(number), static_cast<int>(count));
    return stem + suffix;
  };
  const std::string end = part_name("", 1);
  if (count > kMaxParts || !first.name_.ends_with(end) || first.get_int("split.no").value_or(0) != 0) {
    throw ModelError(first.name_ + ": key \"split.count\": expected the first of " + std::to_string(count) +
                     " parts, named \"..." + end + "\", and at most " + std::to_string(kMaxParts) + " parts");
  }
  const std::string stem = first.name_.substr(0, first.name_.size() - end.size());
  for (int64_t i = 1; i < count; ++i) {
    GgufFile part = open_one(path.parent_path() / part_name(stem, i + 1));
    if (part.get_int("split.no") != i || part.get_int("split.count") != count) {
      throw ModelError(part.name_ + ": keys \"split.no\" and \"split.count\": expected " + std::to_string(i) + " and " +
                       std::to_string(count));
    }
    first.files_.push_back(std::move(part.files_.front()));
    for (auto& [name, tensor] : part.tensors_) {
      if (!first.tensors_.emplace(name, std::move(tensor)).second) {
        throw ModelError(part.name_ + ": tensor \"" + name + "\" is also in another part");
      }
    }
  }
  const int64_t tensors = first.get_int("split.tensors.count").value_or(static_cast<int64_t>(first.tensors_.size()));
  if (tensors != static_cast<int64_t>(first.tensors_.size())) {
    throw ModelError(first.name_ + ": key \"split.tensors.count\": expected the " +
                     std::to_string(first.tensors_.size()) + " tensors of all parts, found " + std::to_string(tensors));
  }
  return first;
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  Reader reader(bytes, file.name_);
  if (const uint32_t magic = reader.number<uint32_t>("the magic number"); magic != 0x46554747u) {
    reader.fail("not a GGUF file: it does not begin with \"GGUF\"");
  }
  const uint32_t version = reader.number<uint32_t>("the version");
  if (version != 2 && version != 3) reader.fail("expected GGUF version 2 or 3, found " + std::to_string(version));
  file.version_ = version;
  const uint64_t n_tensors = reader.number<uint64_t>("the number of tensors");
  const uint64_t n_keys = reader.number<uint64_t>("the number of keys");
  for (uint64_t i = 0; i < n_keys; ++i) {
    std::string key = reader.string("a key");
    const size_t begin = reader.position();
    GgufValue value = read_value(reader, "key \"" + key + "\"");
    file.raw_.emplace(key, bytes.subspan(begin, reader.position() - begin));
    if (!file.metadata_.emplace(key, std::move(value)).second) reader.fail("key \"" + key + "\" appears twice");
  }
  const int64_t alignment = file.get_int("general.alignment").value_or(32);
  if (alignment < 1 || alignment > (1 << 20) || (alignment & (alignment - 1)) != 0) {
    reader.fail("key \"general.alignment\": expected a power of two up to 2^20, found " + std::to_string(alignment));
  }
  std::vector<PendingTensor> pending;
  for (uint64_t i = 0; i < n_tensors; ++i) pending.push_back(read_tensor_info(reader));

  const uint64_t mask = static_cast<uint64_t>(alignment) - 1;
  const uint64_t start = (reader.position() + mask) & ~mask;
  const uint64_t data_bytes = start <= bytes.size() ? bytes.size() - start : 0;
  std::sort(pending.begin(), pending.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  std::string previous;
  for (PendingTensor& tensor : pending) {
    const std::string what = "tensor \"" + tensor.view.name + "\"";
    if ((tensor.offset & mask) != 0) {
      reader.fail(what + ": expected an offset that is a multiple of " + std::to_string(alignment) + ", found " +
                  std::to_string(tensor.offset));
    }
    if (tensor.offset < end) reader.fail(what + " overlaps tensor \"" + previous + "\"");
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      reader.fail("truncated: " + what + " needs bytes [" + std::to_string(tensor.offset) + ", " +
                  std::to_string(tensor.offset + tensor.bytes) + ") of the data, found " + std::to_string(data_bytes));
    }
    end = tensor.offset + tensor.bytes;
    previous = tensor.view.name;
    tensor.view.data = bytes.subspan(static_cast<size_t>(start + tensor.offset), static_cast<size_t>(tensor.bytes));
    std::string key = tensor.view.name;
    if (!file.tensors_.emplace(std::move(key), std::move(tensor.view)).second) {
      reader.fail("tensor \"" + previous + "\" appears twice");
    }
  }
  return file;
}

std::span<const std::byte> GgufFile::raw(std::string_view key) const {
  const auto found = raw_.find(key);
  return found == raw_.end() ? std::span<const std::byte>() : found->second;
}

bool is_gguf(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::array<char, kMagic.size()> begin{};
  return std::ifstream(path, std::ios::binary).read(begin.data(), begin.size()) &&
         std::string_view(begin.data(), begin.size()) == kMagic;
}

std::string stored_as(const GgufFile& file) {
  const std::string* type = file.get_string(kStoredAsKey);
  if (type == nullptr || *type == "int4" || *type == "int8") return type == nullptr ? "" : *type;
  throw ModelError(file.name() + ": key \"" + kStoredAsKey + "\": expected int4 or int8, found \"" + *type + "\"");
}

uint32_t ggml_type_number(TensorType type) {
  const TensorTypeInfo& info = tensor_type_info(type);
  if (info.ggml >= 0) return static_cast<uint32_t>(info.ggml);
  throw ModelError("expected one of the GGUF types " + supported_types() + ", found " + std::string(info.name));
}

std::optional<int64_t> GgufFile::get_int(std::string_view key) const {
  const int64_t* value = typed<int64_t>(metadata_, key, name_, "an integer");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
std::optional<double> GgufFile::get_float(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found != metadata_.end()) {
    if (const int64_t* integer = std::get_if<int64_t>(&found->second)) return static_cast<double>(*integer);
  }
  const double* value = typed<double>(metadata_, key, name_, "a number");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
std::optional<bool> GgufFile::get_bool(std::string_view key) const {
  const bool* value = typed<bool>(metadata_, key, name_, "a boolean");
  return value == nullptr ? std::nullopt : std::optional(*value);
}
const std::string* GgufFile::get_string(std::string_view key) const {
  return typed<std::string>(metadata_, key, name_, "a string");
}
const std::vector<std::string>* GgufFile::get_strings(std::string_view key) const {
  return typed_array<std::vector<std::string>>(metadata_, key, name_, "an array of strings");
}
const std::vector<int64_t>* GgufFile::get_ints(std::string_view key) const {
  return typed_array<std::vector<int64_t>>(metadata_, key, name_, "an array of integers");
}
const std::vector<double>* GgufFile::get_floats(std::string_view key) const {
  return typed_array<std::vector<double>>(metadata_, key, name_, "an array of floats");
}

}  // namespace smartkv
