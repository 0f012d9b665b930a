#include "engine/weights/gguf_writer.h"

#include <stdexcept>
#include <type_traits>

#include "engine/weights/gguf.h"
#include "engine/weights/weights.h"

namespace smartkv {
namespace {

constexpr int64_t kAlignment = 32;                    // GGUF's default, which holds unless a key overrides it
constexpr uint32_t kUint32Type = 4, kStringType = 8;  // GGUF's numbers of value types

template <typename T>
void put(std::string& to, T value) {
  static_assert(std::is_integral_v<T>);
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string& to, std::string_view text) {
  put(to, static_cast<uint64_t>(text.size()));
  to += text;
}

int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GgufWriter::GgufWriter(std::filesystem::path path) : path_(std::move(path)) {}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
  put(keys_, key);
  put(keys_, kStringType);
  put(keys_, value);
  ++n_keys_;
}

void GgufWriter::add_uint32(std::string_view key, uint32_t value) {
  put(keys_, key);
  put(keys_, kUint32Type);
  put(keys_, value);
  ++n_keys_;
}

void GgufWriter::add_raw(std::string_view key, std::span<const std::byte> value) {
  put(keys_, key);
  keys_.append(reinterpret_cast<const char*>(value.data()), value.size());
  ++n_keys_;
}

void GgufWriter::add_tensor(std::string_view name, TensorType type, std::span<const int64_t> shape) {
  const TensorTypeInfo& info = tensor_type_info(type);
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  if (shape.empty() || shape.back() % info.block_elements != 0) {
    throw std::logic_error("GgufWriter: tensor \"" + std::string(name) + "\": expected rows of whole blocks");
  }
  put(infos_, name);
  put(infos_, static_cast<uint32_t>(shape.size()));
  for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) put(infos_, static_cast<uint64_t>(*extent));
  put(infos_, ggml_type_number(type));
  put(infos_, static_cast<uint64_t>(data_bytes_));
  const int64_t bytes = elements / info.block_elements * info.block_bytes;
  tensors_.push_back({std::string(name), bytes});
  data_bytes_ += padded(bytes);
}

void GgufWriter::begin() {
  std::string header = "GGUF";
  put(header, uint32_t{3});
  put(header, static_cast<uint64_t>(tensors_.size()));
  put(header, n_keys_);
  out_.open(path_, std::ios::binary | std::ios::trunc);
  out_ << header << keys_ << infos_;
  pad();
  check();
}

void GgufWriter::check() const {
  if (!out_) throw ModelError(path_.string() + ": cannot be written");
}

void GgufWriter::pad() {
  const int64_t at = out_.tellp();
  for (int64_t i = at; i < padded(at); ++i) out_.put('\0');
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  written_ += static_cast<int64_t>(bytes.size());
  if (current_ == tensors_.size() || written_ > tensors_[current_].bytes) {
    throw std::logic_error("GgufWriter: more bytes than the tensors need");
  }
  out_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  check();
  if (written_ < tensors_[current_].bytes) return;
  pad();
  ++current_;
  written_ = 0;
}

void GgufWriter::end() {
  if (current_ != tensors_.size()) {
    throw std::logic_error("GgufWriter: tensor \"" + tensors_[current_].name + "\" lacks bytes");
  }
  out_.close();
  check();
}

}  // namespace smartkv
